//! Folders of small files through the reactor: files are whole, and are made once, also by several processes at a time.

use lamina_block::{Env, ErrorKind};
use lamina_host::{Options, Reactor};
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

/// The names of the files that are there, hidden ones too.
fn there(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn files_are_made_replaced_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep").join("vault");
    let reactor = Reactor::new(Options::default()).unwrap();
    let host = reactor.env();
    reactor.run(async move {
        let of = host.folder(path.clone()).unwrap();
        assert_eq!(
            (of.list().await, of.read("a", 10).await, of.remove("a").await),
            (Ok(vec![]), Ok(None), Ok(()))
        );
        assert_eq!(of.create("a", b"one".to_vec()).await, Ok(true));
        assert_eq!(of.create("a", b"two".to_vec()).await, Ok(false));
        assert_eq!(of.read("a", 3).await, Ok(Some(b"one".to_vec())));
        assert_eq!(of.read("a", 2).await.map_err(|e| e.kind()), Err(ErrorKind::Invalid));
        of.replace("a", b"three".to_vec()).await.unwrap();
        of.replace("b", b"four".to_vec()).await.unwrap();
        assert_eq!(of.read("a", 10).await, Ok(Some(b"three".to_vec())));
        // What a host left that died meanwhile is no file.
        fs::write(path.join(".partial-0"), b"par").unwrap();
        let mut names = of.list().await.unwrap();
        names.sort();
        assert_eq!(names, ["a", "b"]);
        of.remove("a").await.unwrap();
        assert_eq!(there(&path), [".partial-0", "b"], "nothing else is left over");
        fs::write(folder.path().join("file"), b"").unwrap();
        let no_folder = host.folder(folder.path().join("file")).unwrap();
        let e = no_folder.create("a", vec![]).await.unwrap_err();
        assert!(e.message().contains("/file: "), "{e}");
    });
}

#[test]
fn of_several_that_make_a_file_one_does() {
    const HOSTS: usize = 4;
    let folder = tempfile::tempdir().unwrap();
    let (path, barrier) = (folder.path(), Barrier::new(HOSTS));
    let made = |name: usize| {
        let (host, barrier) = (name, &barrier);
        move || {
            let reactor = Reactor::new(Options::default()).unwrap();
            let env = reactor.env();
            barrier.wait();
            reactor.run(async move {
                let of = env.folder(path.to_path_buf()).unwrap();
                let mut made = Vec::new();
                for n in 0..50 {
                    if of.create(&format!("record.{n}"), vec![host as u8; 5000]).await.unwrap() {
                        made.push(n);
                    }
                }
                made
            })
        }
    };
    let all: Vec<Vec<u32>> = thread::scope(|scope| {
        let hosts: Vec<_> = (0..HOSTS).map(|host| scope.spawn(made(host))).collect();
        hosts.into_iter().map(|host| host.join().unwrap()).collect()
    });
    for n in 0..50 {
        let makers: Vec<usize> = (0..HOSTS).filter(|host| all[*host].contains(&n)).collect();
        assert_eq!(makers.len(), 1, "record {n} was made by {makers:?}");
        assert_eq!(fs::read(path.join(format!("record.{n}"))).unwrap(), vec![makers[0] as u8; 5000]);
    }
    assert_eq!(there(path).len(), 50);
}

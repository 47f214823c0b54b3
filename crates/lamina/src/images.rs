//! Disk images of other programs in the place of a disk: they are served as they lie there, which hardly anybody wants.

use crate::inspect;
use crate::look::Device;
use lamina_graph::Plan;

/// Formats that hold a disk in another shape.
const IMAGES: [&str; 4] = ["qcow2 image", "VMDK image", "VHDX image", "VDI image"];

/// Warns of devices of type `file` that are such images. No refusal: a guest can write what it likes to its own disk, and
/// would otherwise keep that from being served again.
pub fn warn(plans: &[Plan]) {
    plans.iter().flat_map(found).for_each(|warning| eprintln!("lamina: {warning}"));
}

fn found(plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    for device in plan.devices().iter().filter(|device| device.kind.name == "file") {
        let Some(path) = device.path("path") else { continue };
        let Ok(Some(there)) = Device::open(&path) else { continue };
        let signatures = inspect::scan(&there.file, there.size).unwrap_or_default();
        if let Some(image) =
            signatures.iter().find(|found| IMAGES.contains(&found.name) && found.offset < 512)
        {
            warnings.push(format!(
                "{}: device {:?}: {} is a {}, and clients see its bytes as they lie there, header and all. qemu-nbd \
                 serves the disk inside, to a device of type \"nbd\"; qemu-img convert -O raw makes a raw image of it",
                plan.file(),
                device.name,
                path.display(),
                image.name
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qcow2_image_is_warned_of_and_a_raw_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = "[device.a]\ntype = \"file\"\npath = \"a.img\"\n";
        let plan = Plan::parse(text, "disk.toml", folder.path(), &crate::files::kinds()).expect("a plan");
        assert_eq!(found(&plan), Vec::<String>::new());
        let mut image = vec![0; 4096];
        std::fs::write(folder.path().join("a.img"), &image).expect("an image");
        assert_eq!(found(&plan), Vec::<String>::new());
        image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        std::fs::write(folder.path().join("a.img"), &image).expect("an image");
        let [warning] = found(&plan).try_into().expect("one warning");
        assert!(
            warning.contains("disk.toml: device \"a\": ") && warning.contains("is a qcow2 image"),
            "{warning}"
        );
    }
}

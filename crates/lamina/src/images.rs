//! Disk images of other programs in the place of a disk: they are served as they lie there, which hardly anybody wants.

use crate::exit::Failure;
use crate::inspect;
use crate::look::Device;
use lamina_graph::Plan;

/// Formats that hold a disk in another shape.
const IMAGES: [&str; 7] =
    ["qcow2 image", "QED image", "VMDK image", "VHD image", "VHDX image", "VDI image", "Parallels image"];

/// Warns of files and block devices that are such images. No refusal unless the size is none of a disk: a guest can
/// write what it likes to its own disk, and would otherwise keep that from being served again.
pub fn look(plans: &[Plan]) -> Result<(), Failure> {
    let found: Vec<Image> = plans.iter().flat_map(found).collect();
    let (disks, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|image| image.is_whole);
    disks.iter().for_each(|image| eprintln!("lamina: {}", image.warning));
    match others.is_empty() {
        true => Ok(()),
        false => Err(Failure::File(others.into_iter().map(|image| image.warning + "\n").collect())),
    }
}

/// Such an image.
struct Image {
    /// The file has whole blocks, as a disk has.
    is_whole: bool,
    warning: String,
}

fn found(plan: &Plan) -> Vec<Image> {
    let mut warnings = Vec::new();
    for device in plan.devices().iter().filter(|device| device.kind.traits.member) {
        let Some(path) = device.path("path") else { continue };
        let Ok(Some(there)) = Device::open(&path) else { continue };
        let signatures = inspect::scan(&there.file, there.size).unwrap_or_default();
        if let Some(image) =
            signatures.iter().find(|found| IMAGES.contains(&found.name) && found.offset < 512)
        {
            let is_whole = there.size.is_multiple_of(512);
            let sees = if is_whole { "clients see" } else { "clients would see" };
            let warning = format!(
                "{}: device {:?}: {} is a {}, and {sees} its bytes as they lie there, header and all. qemu-nbd serves \
                 the disk inside, to a device of type {:?}; qemu-img convert -O raw makes a raw image of it",
                plan.file(),
                device.name,
                path.display(),
                image.name,
                lamina_nbd::client::KIND.name
            );
            warnings.push(Image { is_whole, warning });
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
        assert!(found(&plan).is_empty());
        let mut image = vec![0; 4096];
        std::fs::write(folder.path().join("a.img"), &image).expect("an image");
        assert!(found(&plan).is_empty());
        image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        std::fs::write(folder.path().join("a.img"), &image).expect("an image");
        let [Image { warning, is_whole }] = found(&plan).try_into().ok().expect("one warning");
        assert!(
            is_whole && warning.contains("disk.toml: device \"a\": ") && warning.contains("is a qcow2 image"),
            "{warning}"
        );
        assert!(look(std::slice::from_ref(&plan)).is_ok());
        image.push(0);
        std::fs::write(folder.path().join("a.img"), &image).expect("an image");
        let refused = look(&[plan]).expect_err("it is no disk").into_message();
        assert!(refused.contains("is a qcow2 image") && !refused.contains("truncate"), "{refused}");
    }
}

//! The groups of this machine, by name, for the sockets of exports.
//!
//! Only the machine's own file is read. Directories of a network are not asked: they may not answer.

use lamina_graph::{Export, Plan};
use lamina_host::Access;

const GROUPS: &str = "/etc/group";

/// Says which exports of a file have a group that is not there.
pub fn check(plan: &Plan) -> Result<(), String> {
    let wrong = plan.exports().iter().filter_map(|export| access(export).err().map(|e| (export, e)));
    let lines = wrong.map(|(export, e)| format!("{}: export {:?}: {e}\n", plan.file(), export.name));
    let report: String = lines.collect();
    if report.is_empty() { Ok(()) } else { Err(report) }
}

/// The access rights of an export's sockets. Errors begin with the key.
pub fn access(export: &Export) -> Result<Access, String> {
    let group = match &export.socket_group {
        None => None,
        Some(name) => {
            let text = std::fs::read(GROUPS).map_err(|e| format!("key \"socket-group\": {GROUPS}: {e}"))?;
            Some(number(name, &String::from_utf8_lossy(&text)).ok_or_else(|| {
                format!(
                    "key \"socket-group\": there is no group {name:?} in {GROUPS}: give a group that is known \
                     elsewhere by its number"
                )
            })?)
        }
    };
    Ok(Access { mode: export.socket_mode, group })
}

/// The number of a group, from the number itself or a name in a table in the format of group(5).
fn number(name: &str, table: &str) -> Option<u32> {
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    name.parse().ok().or_else(|| table.lines().find_map(of_line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_or_a_number() {
        let table = "root:x:0:\nkvm:x:104:qemu,vm1\nlibvirt-qemu:!:64055:\n";
        let found = ["kvm", "libvirt-qemu", "12", "qemu", "x", ""].map(|name| number(name, table));
        assert_eq!(found, [Some(104), Some(64055), Some(12), None, None, None]);
    }
}

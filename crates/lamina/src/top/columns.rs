//! The columns of the tree: which of them fit, and how wide they are.

use super::history::sparkline;
use super::state::{Row, State};
use crate::show::{OperationRates, count, latency};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The name, under those of the devices above.
    Device,
    /// The kind of its layer.
    Kind,
    /// Requests under way.
    Queue,
    /// Reads per second.
    Reads,
    /// Writes per second.
    Writes,
    /// Bytes per second, of all operations.
    Bytes,
    /// The 99th percentile of the latency of all operations.
    P99,
    /// The mean time of a request in the device itself.
    SelfTime,
    /// The part of a request's time that this is.
    Share,
    /// Requests per second, of late.
    Last,
}

/// A column, its first position on the line, and its width.
pub type Placed = (Column, u16, u16);

use Column::{Bytes, Device, Kind, Last, P99, Queue, Reads, SelfTime, Share, Writes};

/// All columns from the left, with the least width of each.
const ALL: [(Column, u16); 10] = [
    (Device, 12),
    (Kind, 4),
    (Queue, 5),
    (Reads, 6),
    (Writes, 7),
    (Bytes, 6),
    (P99, 6),
    (SelfTime, 6),
    (Share, 5),
    (Last, 8),
];
/// The columns that are left out first where there is no room.
const LEFT_OUT: [Column; 9] = [Last, Kind, Queue, Bytes, P99, Reads, Writes, Share, SelfTime];
/// The widest sparkline.
const LAST_MAX: u16 = 60;

impl Column {
    /// The title.
    pub fn title(self) -> &'static str {
        match self {
            Device => "DEVICE",
            Kind => "KIND",
            Queue => "QUEUE",
            Reads => "READ/S",
            Writes => "WRITE/S",
            Bytes => "MiB/S",
            P99 => "P99",
            SelfTime => "SELF",
            Share => "SHARE",
            Last => "REQUESTS",
        }
    }

    /// Text stands to the left, numbers to the right.
    pub fn is_text(self) -> bool {
        matches!(self, Device | Kind | Last)
    }

    /// The text of a device.
    pub fn cell(self, state: &State, row: &Row, name: &str, width: u16) -> String {
        let none = OperationRates::default();
        let rates = state.rates_of(name);
        let of = |operation: &str| rates.and_then(|r| r.operations.get(operation)).unwrap_or(&none);
        let last = state.history.last(name);
        let time = state.self_times.get(name);
        match self {
            Device => format!("{}{name}", row.branches),
            _ if row.is_again => {
                if self == Kind {
                    "above".into()
                } else {
                    String::new()
                }
            }
            Kind => rates.map_or(String::new(), |rates| rates.kind.clone()),
            Queue => rates.map_or("-".into(), |rates| rates.in_flight.to_string()),
            Reads => count(of("read").iops),
            Writes => count(of("write").iops),
            Bytes => count(last.map_or(0.0, |sample| sample.bytes) / 1048576.0),
            P99 => last.and_then(|sample| sample.p99_ns).map_or("-".into(), latency),
            SelfTime => time.map_or("-".into(), |time| latency((time.us * 1e3) as u64)),
            Share => time.map_or("-".into(), |time| format!("{:.0}%", time.share * 100.0)),
            Last => {
                let values: Vec<f64> = state.history.of(name).map(|sample| sample.iops).collect();
                sparkline(&values, width.into(), 1)
            }
        }
    }
}

/// The columns that fit into a width, where the longest first column and the longest kind are so wide.
pub fn place(width: u16, longest_device: usize, longest_kind: usize) -> Vec<Placed> {
    let mut columns = ALL.to_vec();
    let needed = |columns: &[(Column, u16)]| columns.iter().map(|(_, width)| width + 1).sum::<u16>() - 1;
    for left_out in LEFT_OUT {
        if needed(&columns) <= width {
            break;
        }
        columns.retain(|(column, _)| *column != left_out);
    }
    let mut free = width.saturating_sub(needed(&columns));
    let mut grow = |column: Column, up_to: usize| {
        if let Some((_, width)) = columns.iter_mut().find(|(known, _)| *known == column) {
            let more = u16::try_from(up_to).unwrap_or(u16::MAX).saturating_sub(*width).min(free);
            *width += more;
            free -= more;
        }
    };
    // A kind with its middle left out can still be told from others.
    grow(Kind, longest_kind.min(10));
    grow(Device, longest_device);
    grow(Kind, longest_kind);
    grow(Last, LAST_MAX.into());
    let mut at = 0;
    let placed = columns.into_iter().map(|(column, width)| {
        let placed = (column, at, width);
        at += width + 1;
        placed
    });
    placed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(width: u16, device: usize, kind: usize) -> Vec<(&'static str, u16)> {
        place(width, device, kind).into_iter().map(|(column, _, width)| (column.title(), width)).collect()
    }

    #[test]
    fn eighty_columns_have_room_for_all() {
        let all = place(80, 40, 13);
        assert_eq!(all.len(), ALL.len());
        let (_, at, width) = all[9];
        assert_eq!((at + width, all[0].2, all[1].2), (80, 12, 10));
        // Short kinds leave their room to names.
        assert_eq!(widths(80, 40, 6)[..2], [("DEVICE", 16), ("KIND", 6)]);
        assert_eq!(widths(80, 13, 6)[9], ("REQUESTS", 11));
    }

    #[test]
    fn a_wide_screen_shows_names_in_full_and_more_of_the_past() {
        let wide = widths(120, 20, 13);
        assert_eq!((wide[0], wide[1], wide[9]), (("DEVICE", 20), ("KIND", 13), ("REQUESTS", 37)));
        assert_eq!(widths(300, 20, 13)[9], ("REQUESTS", LAST_MAX));
    }

    #[test]
    fn a_narrow_screen_keeps_what_matters_most() {
        let titles = |width| widths(width, 20, 13).into_iter().map(|(title, _)| title).collect::<Vec<_>>();
        assert_eq!(titles(60), ["DEVICE", "QUEUE", "READ/S", "WRITE/S", "MiB/S", "P99", "SELF", "SHARE"]);
        assert_eq!(titles(26), ["DEVICE", "SELF", "SHARE"]);
        assert_eq!(titles(1), ["DEVICE"]);
        for width in 12..200 {
            let (_, at, last) = place(width, 20, 13).pop().expect("a column");
            assert!(at + last <= width, "{width}");
        }
    }
}

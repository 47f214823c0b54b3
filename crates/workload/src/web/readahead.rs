//! The pages that are read ahead of a file's reader: `ondemand_readahead` of Linux 2.6.30 (mm/readahead.c), for files
//! that are read from the begin to the end.
//!
//! ```text
//!      page     0  1  2  3   4 … 11         12 … 27          28 … 59
//!               └──window──┘ └──window──┘   └──window──┘     └──window──┘      sizes 4, 8, 16, 32, 32, … pages
//!                  ▲ marker  ▲ marker       ▲ marker         ▲ marker
//! ```
//!
//! A read of a page that is not there reads a window, and waits. Reading a marked page sends the next window without
//! waiting for it. Random access, interleaved readers of one open file and thrashing are deliberately left out: each
//! process opens a file, reads it once, and closes it.

/// Pages of the largest window: 128 KiB (`VM_MAX_READAHEAD`).
pub(super) const WINDOW_MAX: u32 = 32;

/// A window: pages to read if they are not in the cache, and the page to be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub start: u32,
    pub pages: u32,
    pub marker: u32,
}

/// The state of an open file (`file_ra_state`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadAhead {
    start: u32,
    size: u32,
    /// Pages of the window behind its marker, the marker among them.
    ahead: u32,
}

impl ReadAhead {
    /// `page` is not in the cache, and `pages` pages are wanted.
    pub(super) fn missing(&mut self, page: u32, pages: u32) -> Window {
        if self.expects(page) {
            self.advance();
        } else {
            self.start = page;
            self.size = initial(pages);
            self.ahead = if self.size > pages { self.size - pages } else { self.size };
        }
        self.window(page)
    }

    /// `page` is there and marked. `present` is the number of pages behind it that are in the cache, counted up to
    /// [`WINDOW_MAX`]; `pages` pages are wanted. `None` if there is enough.
    pub(super) fn marked(&mut self, page: u32, pages: u32, present: u32) -> Option<Window> {
        if self.expects(page) {
            self.advance();
        } else {
            // The marker of another reader: what lies behind the pages that are there is next.
            if present >= WINDOW_MAX {
                return None;
            }
            self.start = page + 1 + present;
            self.size = next(present + 1 + pages);
            self.ahead = self.size;
        }
        Some(self.window(page))
    }

    fn expects(&self, page: u32) -> bool {
        let end = self.start + self.size;
        page > 0 && (page == end - self.ahead || page == end)
    }

    fn advance(&mut self) {
        self.start += self.size;
        self.size = next(self.size);
        self.ahead = self.size;
    }

    fn window(&mut self, page: u32) -> Window {
        // A window whose first page is read now would meet its own marker: the next one joins it.
        if page == self.start && self.size == self.ahead {
            self.ahead = next(self.size);
            self.size += self.ahead;
        }
        Window { start: self.start, pages: self.size, marker: self.start + self.size - self.ahead }
    }
}

/// The size of the first window (`get_init_ra_size`).
fn initial(wanted: u32) -> u32 {
    let size = wanted.clamp(1, WINDOW_MAX).next_power_of_two();
    match size {
        _ if size <= WINDOW_MAX / 32 => size * 4,
        _ if size <= WINDOW_MAX / 4 => size * 2,
        _ => WINDOW_MAX,
    }
}

/// The size of the window after one of `size` pages (`get_next_ra_size`).
fn next(size: u32) -> u32 {
    let factor = if size < WINDOW_MAX / 16 { 4 } else { 2 };
    (size * factor).min(WINDOW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn window(start: u32, pages: u32, marker: u32) -> Window {
        Window { start, pages, marker }
    }

    #[test]
    fn windows_grow_as_in_linux() {
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.missing(0, 1), window(0, 4, 1));
        assert_eq!(ahead.marked(1, 1, 2), Some(window(4, 8, 4)));
        assert_eq!(ahead.marked(4, 1, 7), Some(window(12, 16, 12)));
        assert_eq!(ahead.marked(12, 1, 15), Some(window(28, 32, 28)));
        assert_eq!(ahead.marked(28, 1, 31), Some(window(60, 32, 60)));
    }

    #[test]
    fn reads_of_several_pages_begin_with_more() {
        for (pages, wanted) in [
            (1, window(0, 4, 1)),
            (2, window(0, 4, 2)),
            (3, window(0, 8, 3)),
            (8, window(0, 16, 8)),
            // As much as is wanted: the next window joins at once.
            (32, window(0, 64, 32)),
        ] {
            assert_eq!(ReadAhead::default().missing(0, pages), wanted, "{pages} pages");
        }
    }

    #[test]
    fn what_another_reader_left_is_continued() {
        // Pages 0 to 11 are there, 4 is marked: the other reader's window ends before 12.
        assert_eq!(ReadAhead::default().marked(4, 1, 7), Some(window(12, 18, 12)));
        assert_eq!(ReadAhead::default().marked(4, 1, WINDOW_MAX), None);
        // A hole in the cache begins anew.
        assert_eq!(ReadAhead::default().missing(7, 1), window(7, 4, 8));
        // The end of a window that was never marked, because its marker was there already.
        let mut ahead = ReadAhead::default();
        ahead.missing(0, 1);
        assert_eq!(ahead.missing(4, 1), window(4, 8 + 16, 12));
    }
}

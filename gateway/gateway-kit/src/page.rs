//! Pages of lists, bounded by items and by bytes.
//!
//! Owns: where a page ends. Does not own: what is listed, what a cursor looks like.
//! On failure: none of its own; a page that would be too large ends early, and its cursor leads on.

use http_contract::Page;
use serde::Serialize;
use std::io;

/// The most bytes of items on one page; a single item is never cut.
pub const PAGE_BYTES_MAX: usize = 512 * 1024;

/// How many items are read from a store at once: so that one call neither holds the store up nor brings many pages' bytes.
const READ_AT_ONCE: u32 = 100;

/// Counts what is written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A page that is being filled.
struct Filling<R> {
    items: Vec<R>,
    bytes: usize,
}

impl<R: Serialize> Filling<R> {
    const fn new() -> Self {
        Self {
            items: Vec::new(),
            bytes: 0,
        }
    }

    /// Takes an item; false where it does not fit any more.
    fn take(&mut self, item: R) -> bool {
        let mut counted = Counted(1);
        // What cannot be written is found out when the page is.
        let _ = serde_json::to_writer(&mut counted, &item);
        if !self.items.is_empty() && self.bytes + counted.0 > PAGE_BYTES_MAX {
            return false;
        }
        self.bytes += counted.0;
        self.items.push(item);
        true
    }

    fn ends(self, next_cursor: Option<String>) -> Page<R> {
        Page {
            items: self.items,
            next_cursor,
        }
    }
}

/// A page of what was read with one item more than `limit`: that one tells whether there is a next page.
pub fn page<T, R: Serialize>(
    rows: Vec<T>,
    limit: u32,
    cursor: impl Fn(&T) -> String,
    render: impl Fn(T) -> R,
) -> Page<R> {
    let mut page = Filling::new();
    let mut last = None;
    for row in rows {
        if page.items.len() >= limit as usize {
            return page.ends(last);
        }
        let here = cursor(&row);
        if !page.take(render(row)) {
            return page.ends(last);
        }
        last = Some(here);
    }
    page.ends(None)
}

/// A page that is read a part at a time: `read` answers up to so many rows after the given one, from the beginning of the page
/// where there is none. No more is read than the page has room for.
///
/// # Errors
/// As `read`.
pub async fn page_in_parts<T, R: Serialize, E>(
    limit: u32,
    cursor: impl Fn(&T) -> String,
    render: impl Fn(&T) -> R,
    mut read: impl AsyncFnMut(Option<&T>, u32) -> Result<Vec<T>, E>,
) -> Result<Page<R>, E> {
    let mut page = Filling::new();
    let mut last: Option<T> = None;
    loop {
        // At most 1,000 by the contract.
        let left = limit.saturating_sub(u32::try_from(page.items.len()).unwrap_or(u32::MAX));
        if left == 0 {
            return Ok(page.ends(last.as_ref().map(&cursor)));
        }
        let part = left.min(READ_AT_ONCE);
        // One more tells whether the list goes on.
        let rows = read(last.as_ref(), part + 1).await?;
        let goes_on = rows.len() > part as usize;
        for row in rows.into_iter().take(part as usize) {
            if !page.take(render(&row)) {
                return Ok(page.ends(last.as_ref().map(&cursor)));
            }
            last = Some(row);
        }
        if !goes_on {
            return Ok(page.ends(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Every page of a list of so many texts.
    async fn pages(count: usize, bytes: usize, limit: u32) -> Vec<Vec<usize>> {
        let (mut pages, mut from) = (Vec::new(), 0);
        loop {
            let read = async |last: Option<&usize>, n: u32| {
                let begin = last.map_or(from, |last| last + 1);
                assert!(n <= READ_AT_ONCE + 1);
                Ok::<_, Infallible>((begin..count).take(n as usize).collect::<Vec<_>>())
            };
            let page = page_in_parts(limit, usize::to_string, |n| (*n, "x".repeat(bytes)), read).await;
            let Ok(page) = page;
            let whole = (from..count).take(limit as usize + 1).collect();
            let at_once = super::page(whole, limit, usize::to_string, |n| (n, "x".repeat(bytes)));
            assert_eq!((&page.items, &page.next_cursor), (&at_once.items, &at_once.next_cursor));
            assert!(page.items.len() == 1 || serde_json::to_vec(&page.items).unwrap().len() <= PAGE_BYTES_MAX + 2);
            pages.push(page.items.iter().map(|(n, _)| *n).collect());
            match page.next_cursor {
                Some(last) => from = last.parse::<usize>().unwrap() + 1,
                None => return pages,
            }
        }
    }

    #[tokio::test]
    async fn case_s2_a_page_ends_where_its_bytes_do_and_the_cursor_leads_on() {
        for (count, bytes, limit, lengths) in [
            (0, 0, 10, vec![0]),
            (10, 0, 10, vec![10]),
            (11, 0, 10, vec![10, 1]),
            (250, 0, 1_000, vec![250]),
            (1_000, 0, 1_000, vec![1_000]),
            (3, PAGE_BYTES_MAX * 2, 10, vec![1, 1, 1]),
        ] {
            let pages = pages(count, bytes, limit).await;
            assert_eq!(
                pages.iter().map(Vec::len).collect::<Vec<_>>(),
                lengths,
                "{count} of {bytes}"
            );
            assert_eq!(pages.concat(), (0..count).collect::<Vec<_>>());
        }
        let pages = pages(1_000, 4_096, 1_000).await;
        assert!(pages.len() > 1);
        assert_eq!(pages.concat(), (0..1_000).collect::<Vec<_>>());
    }
}

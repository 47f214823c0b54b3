//! `GET /v1/devices/NAME/trace`: the requests of a device as lines of a trace, as they come.
//!
//! The answer has no end of its own: the trace goes on until the client closes the connection, or the device is gone.

use crate::daemon::Asked;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use lamina_block::OpKind;
use std::convert::Infallible;
use std::fmt::Write;
use tokio::sync::mpsc;

/// Lines of one piece of the answer.
const BATCH: usize = 1024;

/// A trace that is under way.
pub struct Tracing {
    /// The requests that come.
    pub asked: mpsc::Receiver<Asked>,
    /// Ends the trace when it is dropped.
    pub end: End,
}

/// Does something when it is dropped.
pub struct End(pub Option<Box<dyn FnOnce() + Send>>);

impl Drop for End {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// The answer for the device called `name`.
pub fn answer(tracing: Tracing, name: String) -> Response {
    let head = futures_util::stream::once(std::future::ready(Ok::<_, Infallible>(Bytes::from_static(HEAD))));
    let lines = futures_util::stream::unfold((tracing, name), async |(mut tracing, name)| {
        let mut batch = Vec::new();
        match tracing.asked.recv_many(&mut batch, BATCH).await {
            0 => None,
            _ => Some((Ok(Bytes::from(text(&batch, &name))), (tracing, name))),
        }
    });
    let body = Body::from_stream(futures_util::StreamExt::chain(head, lines));
    ([(header::CONTENT_TYPE, "text/csv")], body).into_response()
}

const HEAD: &[u8] = b"t_us,op,dev,offset_bytes,size_bytes\n";

/// The beginning of a remark that requests are missing; a number follows.
pub const LOST: &str = "# lost ";

/// Requests as lines of a trace. Zeroing counts as writing.
fn text(batch: &[Asked], name: &str) -> String {
    let mut out = String::new();
    for Asked { us, op, at, lost } in batch {
        if *lost > 0 {
            let _ = writeln!(out, "{LOST}{lost} requests before the next: the reader was too slow");
        }
        let op = match op {
            OpKind::Read => 'R',
            OpKind::Write | OpKind::Zero => 'W',
            OpKind::Discard => 'D',
            OpKind::Flush => 'F',
        };
        let _ = writeln!(out, "{us},{op},{name},{},{}", at.start, at.end - at.start);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_workload::trace::{Options, Trace};

    #[test]
    fn lines_are_read_as_a_trace_and_tell_what_is_missing() {
        let asked = |us, op, at, lost| Asked { us, op, at, lost };
        let batch = [
            asked(0, OpKind::Read, 512..4608, 0),
            asked(5, OpKind::Zero, 0..1024, 7),
            asked(6, OpKind::Flush, 0..0, 0),
            asked(9, OpKind::Discard, 0..512, 0),
        ];
        let lines = text(&batch, "vm1");
        let wanted = "0,R,vm1,512,4096\n# lost 7 requests before the next: the reader was too slow\n\
                      5,W,vm1,0,1024\n6,F,vm1,0,0\n9,D,vm1,0,512\n";
        assert_eq!(lines, wanted);
        let file = [HEAD, lines.as_bytes()].concat();
        let trace = Trace::read("t", std::io::Cursor::new(file), Options::default()).expect("a trace");
        assert_eq!(trace.filter(|record| record.is_ok()).count(), 4);
    }

    #[test]
    fn the_end_of_the_answer_ends_the_trace() {
        let (sender, ended) = std::sync::mpsc::channel();
        let end = End(Some(Box::new(move || sender.send(()).expect("a reader"))));
        let (_asks, asked) = mpsc::channel(1);
        drop(answer(Tracing { asked, end }, "a".into()));
        assert_eq!(ended.try_recv(), Ok(()));
    }
}

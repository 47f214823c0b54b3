//! Frames over a connection.

use crate::wire::{BLOCK, Batch, Frame, HEAD, lengths};
use lamina_block::{Buf, Conn, Env, Error, ErrorKind, Result};

/// Fills a buffer; false if the connection ended before its first byte.
async fn fill(conn: &dyn Conn, into: &Buf) -> Result<bool> {
    let mut done = 0;
    while done < into.len() {
        match conn.recv(into.slice(done..into.len())).await? {
            0 if done == 0 => return Ok(false),
            0 => return Err(Error::offline("the connection ended within a frame")),
            n => done += n,
        }
    }
    Ok(true)
}

/// The next frame with its data; `None` at the end. Memory is taken when the lengths are known to be allowed.
pub async fn receive(conn: &dyn Conn, env: &dyn Env) -> Result<Option<(Frame, Buf)>> {
    let head = Buf::zeroed(HEAD);
    let filled = fill(conn, &head).await;
    let mut bytes = [0; HEAD];
    head.read(0, &mut bytes);
    if let [0x15 | 0x16, 3, ..] = bytes {
        // A record of TLS: an alert, or the begin of a handshake.
        let message =
            "the other host encrypts what it says, and this one does not (`tls` of the reservation)";
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    if !filled? {
        return Ok(None);
    }
    let of = lengths(&bytes)?;
    let (body, data) = (Buf::zeroed(of.body), env.pool().take(of.data));
    for part in [&body, &data] {
        if !fill(conn, part).await? && !part.is_empty() {
            return Err(Error::offline("the connection ended within a frame"));
        }
    }
    let frame = Frame::decode(&of, &body.to_vec())?;
    if let Frame::Batch(batch) = &frame {
        check(batch, &data)?;
    }
    Ok(Some((frame, data)))
}

/// Sends a frame, and the data of a batch.
pub async fn send(conn: &dyn Conn, frame: &Frame, data: Buf) -> Result<()> {
    let mut bytes = Buf::from_vec(frame.encode());
    bytes.append(data);
    conn.send(bytes).await
}

/// Fails if data have another checksum than their batch says.
fn check(batch: &Batch, data: &Buf) -> Result<()> {
    let mut blocks = (0..data.len()).step_by(BLOCK);
    for entry in &batch.entries {
        let sum = blocks.by_ref().take(entry.count as usize).fold(0, |sum, from| {
            let mut block = [0; BLOCK];
            data.read(from, &mut block);
            crc32c::crc32c_append(sum, &block)
        });
        if sum != entry.checksum {
            let message = format!(
                "the data of write {} have another checksum: they changed on their way",
                entry.serial
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
    }
    Ok(())
}

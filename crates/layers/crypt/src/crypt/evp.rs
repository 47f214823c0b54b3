//! Ciphers of aws-lc, which is fast on every processor. All unsafe code of encryption is here.
//!
//! A context holds a cipher with its key schedule. It is made once and used for every unit with another IV, so that a
//! unit costs little more than its encryption. It belongs to one core; aws-lc clears its memory when it is freed.
//!
//! Units are taken from and put into the memory of requests without a copy between: the library reads and
//! writes through pointers, as the kernel does. A client that changes memory while it is read (a guest can)
//! gets the encryption or decryption of some mixture of the bytes, in the units that it changed, and nothing
//! else.

use super::cipher::Algorithm;
use aws_lc_sys as c;
use lamina_block::{Buf, Error, ErrorKind, Result, Segment};
use std::ops::Range;
use std::ptr::{NonNull, null, null_mut};

/// The longest unit in bytes.
const UNIT_MAX: usize = 4096;

/// A cipher with a key, for one direction.
pub(super) struct Context {
    context: NonNull<c::EVP_CIPHER_CTX>,
}

impl Context {
    /// `algorithm` with `key`, to encrypt or to decrypt.
    pub fn new(algorithm: Algorithm, key: &[u8], encrypt: bool) -> Result<Context> {
        // SAFETY: these have no conditions; they return tables that live for ever.
        let cipher = unsafe {
            match algorithm {
                Algorithm::AesXts => c::EVP_aes_256_xts(),
                Algorithm::Blowfish => c::EVP_bf_cbc(),
                Algorithm::Des => c::EVP_des_cbc(),
                Algorithm::TripleDes => c::EVP_des_ede3_cbc(),
            }
        };
        let failed = |what: &str| Error::invalid(format!("{} {what}", algorithm.name()));
        // SAFETY: no conditions; null if there is no memory.
        let context =
            NonNull::new(unsafe { c::EVP_CIPHER_CTX_new() }).ok_or_else(|| failed("has no memory"))?;
        let context = Context { context };
        let encrypt = encrypt.into();
        // SAFETY: the context was made above and is not shared; `cipher` is a table; without a key and an IV, nothing
        // is read.
        let begun =
            unsafe { c::EVP_CipherInit_ex(context.raw(), cipher, null_mut(), null(), null(), encrypt) };
        // SAFETY: the context has a cipher now. Lengths that the cipher cannot have are refused.
        let fits =
            begun == 1 && unsafe { c::EVP_CIPHER_CTX_set_key_length(context.raw(), key.len() as u32) } == 1;
        if !fits {
            return Err(failed(&format!("has no keys of {} bytes", key.len())));
        }
        // SAFETY: the key has the length that the context was told a line before.
        let keyed =
            unsafe { c::EVP_CipherInit_ex(context.raw(), null(), null_mut(), key.as_ptr(), null(), encrypt) };
        if keyed == 1 { Ok(context) } else { Err(failed("refuses the key: it is a weak one")) }
    }

    fn raw(&self) -> *mut c::EVP_CIPHER_CTX {
        self.context.as_ptr()
    }

    /// Encrypts or decrypts one unit.
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` bytes and `to` for writes; they are the same or do not overlap.
    unsafe fn unit(&self, iv: &[u8; 16], from: *const u8, to: *mut u8, len: usize) -> bool {
        // SAFETY: the context has a cipher and a key since it was made, and no cipher's IV is longer than 16 bytes.
        // The memory is the caller's care. One context is used by one call at a time: it is not `Sync`.
        unsafe {
            c::EVP_CipherInit_ex(self.raw(), null(), null_mut(), null(), iv.as_ptr(), -1) == 1
                && c::EVP_Cipher(self.raw(), to, from, len) == 1
        }
    }

    /// Encrypts or decrypts `bytes` in place, whole units of `unit` bytes; `iv` makes the IV of the unit of a number.
    pub fn in_place(&self, bytes: &mut [u8], unit: usize, iv: impl Fn(u64) -> [u8; 16]) -> Result<()> {
        for (number, bytes) in (0..).zip(bytes.chunks_exact_mut(unit)) {
            // SAFETY: both pointers are those of a slice that is borrowed exclusively.
            let done = unsafe { self.unit(&iv(number), bytes.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
            done.then_some(()).ok_or_else(failed)?;
        }
        Ok(())
    }

    /// Encrypts or decrypts `from` into `to`, which have the same length, whole units of `unit` bytes (at
    /// most 4096). They are one buffer, or share no memory. `iv` makes the IV of the unit of a number. With
    /// `keep_zeroes`, units of zeroes become units of zeroes.
    ///
    /// Memory may be in pieces of any length; only units that are not in one piece are copied.
    pub fn buffers(
        &self,
        from: &Buf,
        to: &Buf,
        unit: usize,
        keep_zeroes: bool,
        iv: impl Fn(u64) -> [u8; 16],
    ) -> Result<()> {
        assert!(from.len() == to.len() && from.len().is_multiple_of(unit) && unit <= UNIT_MAX);
        let (mut source, mut target) = (Pieces::of(from), Pieces::of(to));
        for number in 0..(from.len() / unit) as u64 {
            let iv = iv(number);
            match (source.next(unit), target.next(unit)) {
                // SAFETY: both are pieces of segments: the same one of one buffer, or of buffers which the caller says
                // are different memory.
                (Some(start), Some(end)) => unsafe { self.zero_or_unit(&iv, start, end, unit, keep_zeroes)? },
                _ => self.bounced(
                    &iv,
                    from,
                    to,
                    number as usize * unit..(number as usize + 1) * unit,
                    keep_zeroes,
                )?,
            }
        }
        Ok(())
    }

    /// The unit `at`, which is not in one piece on both sides.
    #[cold]
    fn bounced(
        &self,
        iv: &[u8; 16],
        from: &Buf,
        to: &Buf,
        at: Range<usize>,
        keep_zeroes: bool,
    ) -> Result<()> {
        let mut bytes = [0; UNIT_MAX];
        let bytes = &mut bytes[..at.len()];
        from.read(at.start, bytes);
        // SAFETY: both are the same array, borrowed exclusively.
        unsafe { self.zero_or_unit(iv, bytes.as_ptr(), bytes.as_mut_ptr(), bytes.len(), keep_zeroes)? }
        to.write(at.start, bytes);
        Ok(())
    }

    /// [`Context::unit`], but with `keep_zeroes`, zeroes become zeroes.
    ///
    /// # Safety
    /// As there.
    unsafe fn zero_or_unit(
        &self,
        iv: &[u8; 16],
        from: *const u8,
        to: *mut u8,
        len: usize,
        keep_zeroes: bool,
    ) -> Result<()> {
        // SAFETY: all three calls ask for what this function asks for.
        unsafe {
            if keep_zeroes && is_zero(from, len) {
                if to.cast_const() != from {
                    to.write_bytes(0, len);
                }
                return Ok(());
            }
            self.unit(iv, from, to, len).then_some(()).ok_or_else(failed)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was made by `EVP_CIPHER_CTX_new` and is freed once; what it holds is cleared.
        unsafe { c::EVP_CIPHER_CTX_free(self.raw()) }
    }
}

fn failed() -> Error {
    Error::new(ErrorKind::Unsupported, "the cipher failed")
}

/// True if there are only zeroes. Others may change the bytes meanwhile, so copies of them are compared.
///
/// # Safety
/// `start` must be valid for reads of `len` bytes.
unsafe fn is_zero(start: *const u8, len: usize) -> bool {
    let mut bytes = [0u8; 64];
    (0..len).step_by(bytes.len()).all(|at| {
        let part = &mut bytes[..(len - at).min(64)];
        // SAFETY: `at` and the length of the part are at most `len` together; the array is nobody else's.
        unsafe { start.add(at).copy_to_nonoverlapping(part.as_mut_ptr(), part.len()) };
        part.iter().fold(0, |all, byte| all | byte) == 0
    })
}

/// The memory of a buffer, unit by unit.
struct Pieces<'a> {
    segments: std::slice::Iter<'a, Segment>,
    /// The rest of the current segment.
    at: *mut u8,
    left: usize,
}

impl<'a> Pieces<'a> {
    fn of(buf: &'a Buf) -> Pieces<'a> {
        Pieces { segments: buf.segments().iter(), at: null_mut(), left: 0 }
    }

    /// The address of the next `len` bytes, if they are in one piece.
    fn next(&mut self, len: usize) -> Option<*mut u8> {
        let mut needed = len;
        let whole = loop {
            if self.left >= needed {
                break needed == len;
            }
            needed -= self.left;
            let segment = self.segments.next()?;
            (self.at, self.left) = (segment.as_ptr(), segment.len());
        };
        let start = self.at;
        // `needed` bytes are left in the segment, so that this stays inside of it or at its end.
        self.at = self.at.wrapping_add(needed);
        self.left -= needed;
        whole.then_some(start)
    }
}

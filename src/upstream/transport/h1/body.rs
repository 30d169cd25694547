//! Message body framing: by length, by chunks, or by the end of the connection (RFC 9112 sections 6 and 7.1).

use bytes::{Buf, Bytes, BytesMut};

/// Maximum size of a chunk size line with its extensions.
const SIZE_LINE_BYTES_MAX: usize = 4 * 1024;

/// Maximum size of the trailer section.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// The framing of a body, and the read position in it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Framing {
    /// The body is complete.
    Done,
    /// This many bytes remain.
    Length(u64),
    Chunked(Chunk),
    /// Everything until the connection ends.
    UntilClose,
}

/// The next element of a chunked body.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chunk {
    /// The line with the size.
    Size,
    /// This many bytes of data.
    Data(u64),
    /// The line end after the data.
    DataEnd,
    /// Trailer fields, with the number of their bytes so far, and an empty line.
    Trailer(usize),
}

impl Framing {
    pub(super) fn chunked() -> Framing {
        Framing::Chunked(Chunk::Size)
    }

    /// The number of bytes known to follow.
    pub(super) fn bytes_left(&self) -> usize {
        match *self {
            Framing::Length(left) | Framing::Chunked(Chunk::Data(left)) => {
                usize::try_from(left).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }

    /// The next piece of the body in `input`; `None` when the body is complete or more has to be read.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, &'static str> {
        loop {
            match self {
                Framing::Done => return Ok(None),
                Framing::UntilClose => {
                    return Ok((!input.is_empty()).then(|| input.split().freeze()));
                }
                Framing::Length(left) => {
                    let piece = split(input, left);
                    if *left == 0 {
                        *self = Framing::Done;
                    }
                    return Ok(piece);
                }
                Framing::Chunked(chunk) => match chunk {
                    Chunk::Data(left) => {
                        let piece = split(input, left);
                        if *left == 0 {
                            *chunk = Chunk::DataEnd;
                        }
                        return Ok(piece);
                    }
                    Chunk::DataEnd => {
                        if input.len() < 2 {
                            return Ok(None);
                        }
                        if !input.starts_with(b"\r\n") {
                            return Err("a chunk is longer than its declared size");
                        }
                        input.advance(2);
                        *chunk = Chunk::Size;
                    }
                    // The parser takes a line without digits for a size of zero.
                    Chunk::Size if input.first().is_some_and(|byte| !byte.is_ascii_hexdigit()) => {
                        return Err("a chunk has no size");
                    }
                    Chunk::Size => match httparse::parse_chunk_size(input) {
                        Ok(httparse::Status::Complete((length, size)))
                            if length <= SIZE_LINE_BYTES_MAX =>
                        {
                            input.advance(length);
                            *chunk = match size {
                                0 => Chunk::Trailer(0),
                                size => Chunk::Data(size),
                            };
                        }
                        Ok(httparse::Status::Partial) if input.len() <= SIZE_LINE_BYTES_MAX => {
                            return Ok(None);
                        }
                        _ => return Err("a chunk has no size"),
                    },
                    Chunk::Trailer(seen) => {
                        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
                            if *seen + input.len() > TRAILER_BYTES_MAX {
                                return Err("the trailer fields of the answer are too long");
                            }
                            return Ok(None);
                        };
                        let is_empty = matches!(&input[..end], b"\r" | b"");
                        *seen += end + 1;
                        let is_too_long = *seen > TRAILER_BYTES_MAX;
                        input.advance(end + 1);
                        if is_empty {
                            *self = Framing::Done;
                        } else if is_too_long {
                            return Err("the trailer fields of the answer are too long");
                        }
                    }
                },
            }
        }
    }
}

/// The available part of `input`, up to `left` bytes.
fn split(input: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    if input.is_empty() {
        return None;
    }
    let length = usize::try_from(*left)
        .unwrap_or(usize::MAX)
        .min(input.len());
    *left -= length as u64;
    Some(input.split_to(length).freeze())
}

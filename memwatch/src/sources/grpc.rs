//! Framing of unary gRPC calls over HTTP/2 (PROTOCOL-HTTP2.md of the gRPC project): a request, a
//! response, and a status.

use hyper::body::Bytes;
use hyper::header::HeaderMap;

/// Size of the prefix of a message: a byte for compression and four for the length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Encodes a message.
///
/// # Panics
/// The message has 4 GiB or more.
pub(crate) fn framed(message: &[u8], is_compressed: bool) -> Bytes {
    let mut frame = Vec::with_capacity(PREFIX_BYTES + message.len());
    frame.push(is_compressed.into());
    frame.extend(u32::try_from(message.len()).expect("a message is short").to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// Decodes a message.
///
/// # Errors
/// The bytes are not one whole uncompressed message.
pub(crate) fn unframed(body: &[u8]) -> Result<&[u8], &'static str> {
    const CUT: &str = "not one whole message";
    let ([compressed, length @ ..], message) = body.split_first_chunk::<PREFIX_BYTES>().ok_or(CUT)?;
    if *compressed != 0 {
        return Err("compressed, which was not asked for");
    }
    if usize::try_from(u32::from_be_bytes(*length)) != Ok(message.len()) {
        return Err(CUT);
    }
    Ok(message)
}

/// Returns the status code and the message of a call from the trailers. Code 0 is success.
pub(crate) fn status(trailers: &HeaderMap) -> Option<(&str, &str)> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    text("grpc-status").map(|status| (status, text("grpc-message").unwrap_or_default()))
}

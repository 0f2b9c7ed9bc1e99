//! How a call of gRPC lies in HTTP/2 (PROTOCOL-HTTP2.md of the gRPC project): one message there, one back, and a status.

use hyper::body::Bytes;
use hyper::header::HeaderMap;

/// A byte that shows whether the message is compressed, and its length in four.
pub(crate) const PREFIX_BYTES: usize = 5;

/// A message as it is sent.
///
/// # Panics
/// When it has 4 GiB or more: nobody takes it.
pub(crate) fn framed(message: &[u8], is_compressed: bool) -> Bytes {
    let mut frame = Vec::with_capacity(PREFIX_BYTES + message.len());
    frame.push(is_compressed.into());
    frame.extend(u32::try_from(message.len()).expect("a message is short").to_be_bytes());
    frame.extend(message);
    frame.into()
}

/// The message that was sent.
///
/// # Errors
/// With what it is instead.
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

/// The status of a call and its words, by the trailers of its answer. 0 is success.
pub(crate) fn status(trailers: &HeaderMap) -> Option<(&str, &str)> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    text("grpc-status").map(|status| (status, text("grpc-message").unwrap_or_default()))
}

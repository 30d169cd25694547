//! Log probabilities in the two public formats: a list of tokens in a chat, parallel lists in a text.

use bytes::BytesMut;

use crate::json::{Kind, Reader, Span, SyntaxError};

use super::choice::characters;

/// One token of a list.
#[derive(Default)]
struct Token {
    /// With its quotes.
    token: Option<Span>,
    logprob: Option<Span>,
    top: Option<Span>,
}

/// The `content` of the next `logprobs` object, if it is an array.
pub(super) fn find(reader: &mut Reader<'_>) -> Result<Option<Span>, SyntaxError> {
    let mut found = None;
    let mut first = true;
    reader.enter()?;
    while let Some(key) = reader.key(&mut first)? {
        let kind = reader.kind()?;
        let value = reader.skip()?;
        if key.text.raw == b"content" && kind == Kind::Array && value.len() > 2 {
            found = Some(value);
        }
    }
    Ok(found)
}

/// Writes the list of a chat as the lists of a text. `at` is the offset of the first token, in characters of the text, and is advanced past
/// the last. `top` is the requested number of likeliest tokens; `None` makes their list null.
pub(super) fn write(
    content: &[u8],
    top: u64,
    at: &mut u64,
    out: &mut BytesMut,
) -> Result<(), SyntaxError> {
    let tokens = tokens(content)?;
    let value =
        |span: Option<Span>, missing: &'static [u8]| span.map_or(missing, |s| s.of(content));
    list(br#"{"tokens":["#, &tokens, out, |token, out| {
        out.extend_from_slice(value(token.token, br#""""#));
    });
    list(br#"],"token_logprobs":["#, &tokens, out, |token, out| {
        out.extend_from_slice(value(token.logprob, b"null"));
    });
    if top == 0 {
        out.extend_from_slice(br#"],"top_logprobs":null"#);
    } else {
        let mut failed = None;
        list(br#"],"top_logprobs":["#, &tokens, out, |token, out| {
            if let Err(error) = likeliest(value(token.top, b"[]"), out) {
                failed = Some(error);
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        out.extend_from_slice(b"]");
    }
    list(br#","text_offset":["#, &tokens, out, |token, out| {
        out.extend_from_slice(itoa::Buffer::new().format(*at).as_bytes());
        if let Some(span) = token.token {
            *at += characters(&content[span.start + 1..span.end - 1]);
        }
    });
    out.extend_from_slice(b"]}");
    Ok(())
}

fn list(
    before: &[u8],
    tokens: &[Token],
    out: &mut BytesMut,
    mut write: impl FnMut(&Token, &mut BytesMut),
) {
    out.extend_from_slice(before);
    for (number, token) in tokens.iter().enumerate() {
        if number > 0 {
            out.extend_from_slice(b",");
        }
        write(token, out);
    }
}

/// The likeliest tokens at a position as an object from token to log probability. Of two tokens with equal text the likelier token is kept.
fn likeliest(top: &[u8], out: &mut BytesMut) -> Result<(), SyntaxError> {
    let mut named: Vec<&[u8]> = Vec::new();
    out.extend_from_slice(b"{");
    for one in tokens(top)? {
        let (Some(token), Some(logprob)) = (one.token, one.logprob) else {
            continue;
        };
        let token = token.of(top);
        if named.contains(&token) {
            continue;
        }
        if !named.is_empty() {
            out.extend_from_slice(b",");
        }
        named.push(token);
        out.extend_from_slice(token);
        out.extend_from_slice(b":");
        out.extend_from_slice(logprob.of(top));
    }
    out.extend_from_slice(b"}");
    Ok(())
}

fn tokens(list: &[u8]) -> Result<Vec<Token>, SyntaxError> {
    let mut tokens = Vec::new();
    let mut reader = Reader::new(list);
    let mut first = true;
    reader.kind()?;
    reader.enter()?;
    while reader.item(&mut first)? {
        if reader.kind()? != Kind::Object {
            reader.skip()?;
            continue;
        }
        let mut token = Token::default();
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let kind = reader.kind()?;
            let value = Some(reader.skip()?);
            match (key.text.raw, kind) {
                (b"token", Kind::String) => token.token = value,
                (b"logprob", Kind::Number) => token.logprob = value,
                (b"top_logprobs", Kind::Array) => token.top = value,
                _ => {}
            }
        }
        tokens.push(token);
    }
    Ok(tokens)
}

//! Session ids of MCP servers, bound to the account that received the id: a keyed hash after each id, checked on every request.
//!
//! The server's id is a bearer secret. A server that trusts only the id would continue the session of any caller with the id. The client
//! receives the id with a tag over the id, the resource and the account. The server receives the id without the tag. No state is kept: a
//! binding holds across restarts and on every node of a database.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate_filter::{RelayedHead, Request};
use tollgate_money::AccountId;

/// The field with the id, in the two directions.
pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// Separates an id from its tag. An id may contain the separator.
const SEPARATOR: u8 = b'.';

/// Bytes of a tag.
const TAG_BYTES: usize = 16;

/// The key of the tags, derived from the secret of the database.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// The key for the root secret.
    pub fn derive(root: &[u8; 32]) -> SessionKey {
        SessionKey(blake3::derive_key(
            "tollgate 2026 MCP session binding",
            root,
        ))
    }
}

impl std::fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionKey([redacted])")
    }
}

/// The session ids of an account at a resource.
#[derive(Clone, Debug)]
pub(crate) struct BoundSessions {
    key: SessionKey,
    resource: std::sync::Arc<str>,
    account: AccountId,
}

/// Why the session id of a request is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionError {
    /// Several ids, which two programs could read differently.
    Repeated,
    /// An id that this account did not receive here.
    Unknown,
}

impl BoundSessions {
    pub(crate) fn of(
        key: &SessionKey,
        resource: &std::sync::Arc<str>,
        account: AccountId,
    ) -> BoundSessions {
        BoundSessions {
            key: key.clone(),
            resource: resource.clone(),
            account,
        }
    }

    /// The server's id of the session named in a request, if any.
    pub(crate) fn of_request(
        &self,
        request: &Request,
    ) -> Result<Option<HeaderValue>, SessionError> {
        let mut values = request.headers.get_all(SESSION_ID).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => self.unbind(value).map(Some).ok_or(SessionError::Unknown),
            (Some(_), Some(_)) => Err(SessionError::Repeated),
        }
    }

    /// The id in the client's form.
    fn bind(&self, id: &HeaderValue) -> Option<HeaderValue> {
        let tag = URL_SAFE_NO_PAD.encode(self.tag(id.as_bytes()));
        let bound = [id.as_bytes(), &[SEPARATOR], tag.as_bytes()].concat();
        HeaderValue::from_bytes(&bound).ok()
    }

    /// The server's id, if the tag belongs to this account.
    fn unbind(&self, bound: &HeaderValue) -> Option<HeaderValue> {
        let bytes = bound.as_bytes();
        let at = bytes.iter().rposition(|byte| *byte == SEPARATOR)?;
        let (id, tag) = (&bytes[..at], &bytes[at + 1..]);
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        let wanted = self.tag(id);
        // In constant time: no position of a wrong byte is revealed.
        let differs = tag
            .iter()
            .zip(wanted)
            .fold(0, |seen, (one, other)| seen | (one ^ other));
        (tag.len() == TAG_BYTES && differs == 0).then(|| HeaderValue::from_bytes(id).ok())?
    }

    fn tag(&self, id: &[u8]) -> [u8; TAG_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(self.account.as_bytes());
        hasher.update(self.resource.as_bytes());
        // No name of a resource has this byte.
        hasher.update(&[0]);
        hasher.update(id);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
        tag
    }
}

impl RelayedHead for BoundSessions {
    fn edit(&self, headers: &mut HeaderMap) {
        let ids: Vec<HeaderValue> = headers.get_all(SESSION_ID).iter().cloned().collect();
        headers.remove(SESSION_ID);
        for id in ids.iter().filter_map(|id| self.bind(id)) {
            headers.append(SESSION_ID, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(root: u8, resource: &str, account: u8) -> BoundSessions {
        let key = SessionKey::derive(&[root; 32]);
        BoundSessions::of(&key, &resource.into(), AccountId::from_bytes([account; 16]))
    }

    #[test]
    fn an_id_is_read_by_the_account_and_resource_that_it_was_given_to() {
        let own = sessions(1, "mcp.general", 1);
        for id in ["session-1", "a.b", ".", "a.", "0b6ad3f0-1a2b"] {
            let id = HeaderValue::from_str(id).expect("visible characters");
            let bound = own.bind(&id).expect("visible characters");
            assert_ne!(bound, id);
            assert_eq!(own.unbind(&bound), Some(id.clone()));
            assert_eq!(own.unbind(&id), None, "without its tag");
            for (what, other) in [
                ("another account", sessions(1, "mcp.general", 2)),
                ("another resource", sessions(1, "mcp.android", 1)),
                ("another database", sessions(2, "mcp.general", 1)),
            ] {
                assert_eq!(other.unbind(&bound), None, "{what}");
            }
            let mut changed = bound.as_bytes().to_vec();
            changed[0] ^= 1;
            let changed = HeaderValue::from_bytes(&changed).expect("visible characters");
            assert_eq!(own.unbind(&changed), None, "another id with its tag");
        }
    }
}

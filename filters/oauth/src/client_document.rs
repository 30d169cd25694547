//! Client ID metadata documents (draft-ietf-oauth-client-id-metadata-document-00).
//!
//! The requester chooses the URL, so fetching is restricted against SSRF: `https` and public addresses only, one attempt, no redirects,
//! short timeout and small size. The document is not stored before a person has granted access.

use std::net::IpAddr;
use std::sync::Arc;

use tollgate_clock::{Clock, Timestamp};
use tollgate_fetch::{
    Cached, DocumentCache, DocumentUrl, FetchError, Fetched, Fetcher, SetupError,
};
use tollgate_identity::oauth::{CheckedClient, ClientError};
use tollgate_store::ClientRow;

use crate::json::Json;
use crate::register::parse_metadata;

/// Maximum size of a document, in bytes.
const BYTES_MAX: usize = 5 * 1024;

/// Members that only confidential clients have.
const SECRETS: [&str; 2] = ["client_secret", "client_secret_expires_at"];

/// Cache of client metadata documents: fetched on demand, kept while fresh.
pub(crate) struct ClientDocuments {
    fetcher: Fetcher,
    cache: DocumentCache<CheckedClient>,
    clock: Clock,
    refresh_offered: bool,
}

/// Why a URL identifies no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// The URL is not allowed as a client id.
    #[error("the URL is not allowed as a client id")]
    Address,
    /// A recent fetch failed.
    #[error("a recent fetch of the document failed")]
    RecentFailure,
    /// The rate limit of the host is exceeded.
    #[error("the fetch limit of that host is exceeded")]
    RateLimited,
    /// Fetching failed.
    #[error("the document could not be fetched")]
    Fetch(#[source] FetchError),
    /// The document is invalid.
    #[error("the document does not describe a client: {0}")]
    Invalid(&'static str),
    /// The document describes a client that registration would reject.
    #[error("the document describes a client that cannot be registered: {0}")]
    Rejected(#[source] ClientError),
}

impl ClientDocuments {
    pub(crate) fn new(clock: Clock, refresh_offered: bool) -> Result<ClientDocuments, SetupError> {
        Ok(ClientDocuments {
            fetcher: Fetcher::new(BYTES_MAX, clock.clone())?,
            cache: DocumentCache::default(),
            clock,
            refresh_offered,
        })
    }

    /// The client that a URL identifies.
    pub(crate) async fn client(
        &self,
        id: &str,
        requester: Option<IpAddr>,
    ) -> Result<ClientRow, DocumentError> {
        let url: DocumentUrl = id.parse().map_err(|_| DocumentError::Address)?;
        let now = self.clock.elapsed();
        let client = match self.cache.get(id, now) {
            Some(Cached::Found(client)) => client,
            Some(Cached::Failure) => return Err(DocumentError::RecentFailure),
            None => {
                if !self.cache.may_fetch(url.host(), now) {
                    return Err(DocumentError::RateLimited);
                }
                self.fetch(&url, requester).await?
            }
        };
        Ok(row(id, &client))
    }

    async fn fetch(
        &self,
        url: &DocumentUrl,
        requester: Option<IpAddr>,
    ) -> Result<Arc<CheckedClient>, DocumentError> {
        let read = match self.fetcher.fetch(url, requester).await {
            Ok(Fetched { body, fresh }) => {
                parse_document(url.as_str(), &body, self.refresh_offered)
                    .map(|client| (client, fresh))
            }
            Err(error) => Err(DocumentError::Fetch(error)),
        };
        let now = self.clock.elapsed();
        match read {
            Ok((client, fresh)) => {
                let client = Arc::new(client);
                self.cache.insert(url.as_str(), &client, now + fresh, now);
                Ok(client)
            }
            // Not a property of the document: too many fetches in progress.
            Err(error @ DocumentError::Fetch(FetchError::TooMany)) => Err(error),
            Err(error) => {
                self.cache.insert_failure(url.as_str(), now);
                Err(error)
            }
        }
    }
}

/// Parses and validates the metadata document at a URL.
fn parse_document(
    url: &str,
    body: &[u8],
    refresh_offered: bool,
) -> Result<CheckedClient, DocumentError> {
    let members = Json::object(body).ok_or(DocumentError::Invalid("it is not a JSON object"))?;
    match members.get("client_id") {
        // Compared byte for byte: another spelling is another client.
        Some(Json::Text(id)) if id == url => {}
        _ => return Err(DocumentError::Invalid("client_id differs from its URL")),
    }
    if SECRETS.iter().any(|name| members.contains_key(*name)) {
        return Err(DocumentError::Invalid("it contains a secret"));
    }
    let metadata = parse_metadata(members).map_err(DocumentError::Invalid)?;
    // The document is public, so a method with a secret is a mistake; registration would replace the method, this check does not.
    if metadata
        .auth_method
        .as_deref()
        .is_some_and(|method| method != "none")
    {
        return Err(DocumentError::Invalid("its client authenticates"));
    }
    let client = metadata
        .check(refresh_offered)
        .map_err(DocumentError::Rejected)?;
    match client.name {
        Some(_) => Ok(client),
        None => Err(DocumentError::Invalid("client_name is missing or too long")),
    }
}

fn row(id: &str, client: &CheckedClient) -> ClientRow {
    ClientRow {
        id: Arc::from(id),
        name: client.name.clone(),
        redirect_uris: client
            .redirect_uris
            .iter()
            .map(|uri| Arc::from(uri.as_str()))
            .collect(),
        refresh: client.refresh,
        document: true,
        created_at: Timestamp::UNIX_EPOCH,
        used_at: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const URL: &str = "https://app.example/client.json";

    fn document(change: impl FnOnce(&mut Value)) -> String {
        let mut document = json!({
            "client_id": URL,
            "client_name": "Notebook Copilot",
            "redirect_uris": ["https://app.example/cb", "http://127.0.0.1/cb"],
            "client_uri": "https://app.example",
        });
        change(&mut document);
        document.to_string()
    }

    #[test]
    fn a_client_document_names_its_own_url_and_no_secret() {
        let client = parse_document(URL, document(|_| {}).as_bytes(), false).expect("sound");
        assert_eq!(client.name.as_deref(), Some("Notebook Copilot"));
        assert_eq!(client.redirect_uris.len(), 2);
        let more = document(|one| {
            one["redirect_uris"] = json!(["com.example.app:/cb", "https://app.example/cb", 1]);
            one["grant_types"] =
                json!(["authorization_code", "refresh_token", "urn:example:other"]);
        });
        let more = parse_document(URL, more.as_bytes(), true).expect("something is left");
        assert_eq!((more.redirect_uris.len(), more.refresh), (1, true));
        let row = row(URL, &client);
        assert!(row.document && row.used_at.is_none());
        type Change = fn(&mut Value);
        let refused: [Change; 11] = [
            |one| one["client_id"] = json!("https://app.example/client.json/"),
            |one| one["client_id"] = json!("https://APP.example/client.json"),
            |one| one["client_id"] = json!(1),
            |one| drop(one.as_object_mut().expect("an object").remove("client_id")),
            |one| {
                drop(
                    one.as_object_mut()
                        .expect("an object")
                        .remove("client_name"),
                )
            },
            |one| {
                drop(
                    one.as_object_mut()
                        .expect("an object")
                        .remove("redirect_uris"),
                )
            },
            |one| one["redirect_uris"] = json!(["http://app.example/cb"]),
            |one| one["client_secret"] = json!("hush"),
            |one| one["client_secret_expires_at"] = json!(0),
            |one| one["token_endpoint_auth_method"] = json!("client_secret_post"),
            |one| one["client_name"] = json!("\u{202e}"),
        ];
        for (at, change) in refused.into_iter().enumerate() {
            let text = document(change);
            assert!(
                parse_document(URL, text.as_bytes(), false).is_err(),
                "{at}: {text}"
            );
        }
        for text in ["", "[]", "{", r#"{"client_id":1,"client_id":2}"#] {
            assert!(
                parse_document(URL, text.as_bytes(), false).is_err(),
                "{text}"
            );
        }
    }
}

//! Client metadata and its rules (RFC 7591 section 2).

use std::sync::Arc;

use super::redirect::{RedirectUri, RedirectUriError};

/// Maximum length of a client's name, characters.
const NAME_CHARS_MAX: usize = 80;

const REDIRECT_URIS_MAX: usize = 10;

const AUTHORIZATION_CODE: &str = "authorization_code";
const REFRESH_TOKEN: &str = "refresh_token";
const SECRET_BASIC: &str = "client_secret_basic";
const SECRET_POST: &str = "client_secret_post";

/// Client metadata as received; lists are reduced to text elements. Other members are ignored, and no URL is fetched.
#[derive(Clone, Debug, Default)]
pub struct ClientMetadata {
    /// `client_name`
    pub name: Option<String>,
    pub redirect_uris: Vec<String>,
    pub grant_types: Option<Vec<String>>,
    pub response_types: Option<Vec<String>>,
    /// `token_endpoint_auth_method`
    pub auth_method: Option<String>,
}

/// Valid client metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedClient {
    /// The client's self-chosen name, without control characters and bidirectional formatting characters.
    pub name: Option<Arc<str>>,
    /// Redirect URIs; at least one.
    pub redirect_uris: Vec<RedirectUri>,
    /// Whether the client may have refresh tokens.
    pub refresh: bool,
}

/// Why metadata was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// `invalid_redirect_uri`: no redirect URI is allowed, the first for this reason.
    #[error("no redirect URI can be used: {0}")]
    RedirectUri(#[from] RedirectUriError),
    /// `invalid_redirect_uri`: none allowed, or too many.
    #[error("redirect_uris must have 1 to {REDIRECT_URIS_MAX} URIs")]
    RedirectUris,
    /// `invalid_client_metadata`: no supported grant type.
    #[error("grant_types must include authorization_code")]
    GrantTypes,
    /// `invalid_client_metadata`: no supported response type.
    #[error("response_types must include code")]
    ResponseTypes,
    /// `invalid_client_metadata`: an authentication method with a key.
    #[error("token_endpoint_auth_method must be none: clients do not authenticate here")]
    AuthMethod,
}

impl ClientError {
    /// Whether the error concerns redirect URIs (`invalid_redirect_uri`) rather than other metadata (`invalid_client_metadata`).
    pub fn is_about_redirect_uris(&self) -> bool {
        matches!(
            self,
            ClientError::RedirectUri(_) | ClientError::RedirectUris
        )
    }
}

impl ClientMetadata {
    /// Validates the metadata. Values that cannot be used are left out (RFC 7591 section 3.2.1), and none is changed; an error if no usable
    /// value of a member is left. `refresh_offered`: whether the server issues refresh tokens.
    pub fn check(&self, refresh_offered: bool) -> Result<CheckedClient, ClientError> {
        let redirect_uris = usable(&self.redirect_uris)?;
        let name = self.name.as_deref().map(clean_name).unwrap_or_default();
        let asks_for = |wanted: &str| match &self.grant_types {
            None => wanted == AUTHORIZATION_CODE,
            Some(types) => types.iter().any(|kind| kind == wanted),
        };
        if !asks_for(AUTHORIZATION_CODE) {
            return Err(ClientError::GrantTypes);
        }
        let has_code = |types: &Vec<String>| types.iter().any(|kind| kind == "code");
        if !self.response_types.as_ref().is_none_or(has_code) {
            return Err(ClientError::ResponseTypes);
        }
        // A missing method defaults to a method with a secret (RFC 7591). This server has no secrets and answers `none` instead. A client
        // with a key is refused: the client expects its key to be checked, and would take part unchecked.
        let has_key = |method: &str| !matches!(method, "none" | SECRET_BASIC | SECRET_POST);
        if self.auth_method.as_deref().is_some_and(has_key) {
            return Err(ClientError::AuthMethod);
        }
        Ok(CheckedClient {
            name: (1..=NAME_CHARS_MAX)
                .contains(&name.chars().count())
                .then(|| Arc::from(name)),
            redirect_uris,
            refresh: refresh_offered && asks_for(REFRESH_TOKEN),
        })
    }
}

impl CheckedClient {
    /// `grant_types` as registered.
    pub fn grant_types(&self) -> &'static [&'static str] {
        match self.refresh {
            true => &[AUTHORIZATION_CODE, REFRESH_TOKEN],
            false => &[AUTHORIZATION_CODE],
        }
    }
}

/// The allowed redirect URIs, in order.
fn usable(uris: &[String]) -> Result<Vec<RedirectUri>, ClientError> {
    let mut usable = Vec::new();
    let mut first_error = None;
    for uri in uris {
        match uri.parse() {
            Ok(uri) => usable.push(uri),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    match (usable.len(), first_error) {
        (0, Some(error)) => Err(ClientError::RedirectUri(error)),
        (1..=REDIRECT_URIS_MAX, _) => Ok(usable),
        _ => Err(ClientError::RedirectUris),
    }
}

/// A name without control characters, line breaks, and invisible or bidirectional formatting characters (Unicode UAX 9, section 2), which
/// could disguise the name as part of the page.
fn clean_name(name: &str) -> String {
    let kept: String = name
        .chars()
        .filter(|&character| {
            !character.is_control()
                && !matches!(
                    character,
                    '\u{61c}'
                        | '\u{200b}'..='\u{200f}'
                        | '\u{2028}'..='\u{202e}'
                        | '\u{2060}'..='\u{206f}'
                        | '\u{feff}'
                        | '\u{fff9}'..='\u{fffb}'
                        | '\u{e0000}'..='\u{e007f}'
                )
        })
        .collect();
    kept.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(change: impl FnOnce(&mut ClientMetadata)) -> ClientMetadata {
        let mut metadata = ClientMetadata {
            redirect_uris: vec![String::from("https://app.example/cb")],
            ..ClientMetadata::default()
        };
        change(&mut metadata);
        metadata
    }

    fn texts(list: &[&str]) -> Option<Vec<String>> {
        Some(list.iter().map(|&text| text.to_owned()).collect())
    }

    #[test]
    fn rfc7591_2_omitted_metadata_means_a_public_client_with_the_code_grant() {
        let checked = metadata(|_| {}).check(false).expect("sound");
        assert_eq!(checked.name, None);
        assert_eq!(checked.grant_types(), ["authorization_code"]);
        let most = metadata(|one| {
            one.redirect_uris = vec![String::from("https://app.example/cb"); 10];
            one.response_types = texts(&["code"]);
            one.grant_types = texts(&["implicit", "authorization_code", "refresh_token"]);
            one.auth_method = Some(String::from("none"));
            one.name = Some("n".repeat(80));
        });
        let without = most.check(false).expect("sound");
        assert_eq!(without.grant_types(), ["authorization_code"]);
        let with = most.check(true).expect("sound");
        assert_eq!(with.grant_types(), ["authorization_code", "refresh_token"]);
        assert_eq!(with.redirect_uris.len(), 10);
    }

    #[test]
    fn rfc7591_3_2_1_unusable_values_are_left_out_and_nothing_is_rewritten() {
        let usable = [
            "https://app.example/cb",
            "http://127.0.0.1:1/cb",
            "http://[::1]/",
        ];
        let unusable = [
            "com.example.app:/cb",
            "cursor://anysphere/callback",
            "http://app.example/cb",
            "http://127.0.0.2/cb",
            "https://app.example/cb#x",
            "",
        ];
        let checked = metadata(|one| {
            one.redirect_uris = unusable
                .iter()
                .chain(&usable)
                .chain(&unusable)
                .map(|&uri| uri.to_owned())
                .collect();
            one.response_types = texts(&["token", "code", "code id_token"]);
            one.auth_method = Some(String::from("client_secret_post"));
            one.name = Some("n".repeat(81));
        })
        .check(true)
        .expect("something is left");
        let kept: Vec<&str> = checked
            .redirect_uris
            .iter()
            .map(RedirectUri::as_str)
            .collect();
        assert_eq!(kept, usable);
        assert_eq!(checked.name, None, "a name is kept whole or not at all");
    }

    #[test]
    fn rfc7591_3_2_2_invalid_metadata_is_rejected() {
        type Change = fn(&mut ClientMetadata);
        let cases: [(Change, ClientError); 8] = [
            (|one| one.redirect_uris.clear(), ClientError::RedirectUris),
            (
                |one| one.redirect_uris = vec![String::from("https://app.example/cb"); 11],
                ClientError::RedirectUris,
            ),
            (
                |one| {
                    one.redirect_uris = ["http://app.example/cb", "com.example.app:/cb"]
                        .map(String::from)
                        .into()
                },
                ClientError::RedirectUri(RedirectUriError::NotLoopback),
            ),
            (|one| one.grant_types = texts(&[]), ClientError::GrantTypes),
            (
                |one| one.grant_types = texts(&["implicit", "password"]),
                ClientError::GrantTypes,
            ),
            (
                |one| one.response_types = texts(&[]),
                ClientError::ResponseTypes,
            ),
            (
                |one| one.response_types = texts(&["token"]),
                ClientError::ResponseTypes,
            ),
            (
                |one| one.auth_method = Some(String::from("private_key_jwt")),
                ClientError::AuthMethod,
            ),
        ];
        for (change, error) in cases {
            assert_eq!(metadata(change).check(true), Err(error.clone()));
            let about_redirects = matches!(
                error,
                ClientError::RedirectUris | ClientError::RedirectUri(_)
            );
            assert_eq!(error.is_about_redirect_uris(), about_redirects);
        }
    }

    #[test]
    fn a_name_cannot_change_the_text_direction() {
        for (name, kept) in [
            ("Notebook Copilot", Some("Notebook Copilot")),
            ("  Notebook\r\n\tCopilot\u{0}", Some("NotebookCopilot")),
            ("\u{202e}tolipoC\u{2066}", Some("tolipoC")),
            ("\u{200b}\u{feff}", None),
            ("", None),
            ("<b>Bücher</b>", Some("<b>Bücher</b>")),
        ] {
            let checked = metadata(|one| one.name = Some(name.to_owned()))
                .check(false)
                .expect("sound");
            assert_eq!(checked.name.as_deref(), kept, "{name:?}");
        }
    }
}

//! Discovery documents (RFC 8414, RFC 9728), each at every described URL.

use std::collections::HashMap;

use serde_json::{Value, json};
use tollgate_filter::{Document, Request, Resource, Resources, Scope, Scopes, ServiceIdentity};

use crate::OAuthConfig;

const SERVER: &str = "/.well-known/oauth-authorization-server";
const RESOURCE: &str = "/.well-known/oauth-protected-resource";
const KEYS: &str = "/.well-known/jwks.json";

/// Contents of the server's metadata.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The configured resources.
    pub resources: Resources,
    /// The scopes for buying products not on sale; not listed.
    pub unsold: Scopes,
}

/// Discovery documents by path.
#[derive(Debug)]
pub(crate) struct Discovery {
    by_path: HashMap<String, Vec<HostDocument>>,
}

/// A document at a path, for one host or for all.
#[derive(Debug)]
struct HostDocument {
    /// `None`: requests under any other host.
    host: Option<String>,
    document: Document,
}

impl Discovery {
    /// The metadata of a resource outside the offer exists too: the 401 at the resource's address names the metadata.
    pub(crate) fn new(
        service: &ServiceIdentity,
        config: &OAuthConfig,
        offered: &Offered,
    ) -> Discovery {
        let mut discovery = Discovery {
            by_path: HashMap::new(),
        };
        let (base, root) = (&service.base_url, &service.root_url);
        let (base_path, root_path) = (path_of(base), path_of(root));
        let server = Document::json(&server_metadata(service, config, offered));
        for path in [
            format!("{base_path}{SERVER}"),
            // With the path of the issuer appended (RFC 8414 section 3.1).
            format!("{SERVER}{base_path}"),
            format!("{root_path}{SERVER}"),
        ] {
            discovery.put(path, None, &server);
        }
        for resource in Resource::ALL {
            // A URL with a final slash is another name of the resource, with metadata at a separate address: only a slash directly behind
            // the host is removed (RFC 9728 section 3.1). Some clients remove every final slash, and accept both names.
            for slash in ["", "/"] {
                let name = format!("{}{slash}", service.resource_url(resource));
                let document = Document::json(&resource_metadata(service, &name, resource));
                let rest = format!("{}{slash}", resource.path());
                // As in the service's own description, and with the path of the resource appended (RFC 9728 section 3.1).
                discovery.put(format!("{base_path}{RESOURCE}{rest}"), None, &document);
                discovery.put(format!("{RESOURCE}{base_path}{rest}"), None, &document);
            }
        }
        // Both URLs of the service identify the API, and the metadata at each URL must name that URL: clients have to reject metadata about
        // another URL (RFC 9728 section 3.3). If the URLs differ in the host only, the request host selects the document.
        let of_root = Document::json(&resource_metadata(service, root, Resource::Api));
        discovery.put(format!("{root_path}{RESOURCE}"), None, &of_root);
        discovery.put(format!("{RESOURCE}{root_path}"), None, &of_root);
        if base != root {
            let of_base = Document::json(&resource_metadata(service, base, Resource::Api));
            let host = (base_path == root_path).then(|| authority_of(base).to_owned());
            discovery.put(format!("{base_path}{RESOURCE}"), host.clone(), &of_base);
            discovery.put(format!("{RESOURCE}{base_path}"), host, &of_base);
        }
        let keys = Document::json(&json!({"keys": []}));
        discovery.put(KEYS.to_owned(), None, &keys);
        discovery.put(format!("{base_path}{KEYS}"), None, &keys);
        discovery
    }

    fn put(&mut self, path: String, host: Option<String>, document: &Document) {
        let at = self.by_path.entry(path).or_default();
        if at.iter().all(|named| named.host != host) {
            at.push(HostDocument {
                host,
                document: document.clone(),
            });
        }
    }

    /// The document for a request.
    pub(crate) fn find(&self, request: &Request) -> Option<&Document> {
        let host = request.single("host").unwrap_or_default();
        self.find_at(&request.path, host)
    }

    fn find_at(&self, path: &str, host: &str) -> Option<&Document> {
        let at = self.by_path.get(path)?;
        let of = |named: &&HostDocument| {
            let named = named.host.as_deref();
            named.is_some_and(|name| name.eq_ignore_ascii_case(host))
        };
        at.iter()
            .find(of)
            .or_else(|| at.iter().find(|named| named.host.is_none()))
            .map(|named| &named.document)
    }
}

/// Metadata of the authorization server (RFC 8414 section 2).
fn server_metadata(service: &ServiceIdentity, config: &OAuthConfig, offered: &Offered) -> Value {
    let base = &service.base_url;
    let scopes = Scope::ALL
        .into_iter()
        .filter(|scope| offered.resources.has(scope.resource()))
        .filter(|scope| !offered.unsold.has(*scope));
    let scopes: Vec<&str> = scopes.map(Scope::name).collect();
    let mut grant_types = vec!["authorization_code"];
    grant_types.extend(config.server.refresh.map(|_| "refresh_token"));
    let resources: Vec<String> = offered
        .resources
        .iter()
        .map(|resource| service.resource_url(resource))
        .collect();
    let mut metadata = json!({
        "issuer": base,
        "authorization_endpoint": format!("{base}/oauth/authorize"),
        "token_endpoint": format!("{base}/oauth/token"),
        "registration_endpoint": format!("{base}/oauth/register"),
        "revocation_endpoint": format!("{base}/oauth/revoke"),
        "jwks_uri": format!("{base}{KEYS}"),
        "service_documentation": documentation(service),
        "scopes_supported": scopes,
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": grant_types,
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": true,
        "protected_resources": resources,
    });
    if config.client_documents {
        metadata["client_id_metadata_document_supported"] = Value::Bool(true);
    }
    metadata
}

/// Metadata of a resource under one identifier (RFC 9728 section 2).
fn resource_metadata(service: &ServiceIdentity, name: &str, resource: Resource) -> Value {
    // Without scopes in a challenge, clients request every scope listed here, so buying is not included.
    let scopes: Vec<&str> = resource.default_scopes().iter().map(Scope::name).collect();
    let what = match resource {
        Resource::Api => "API",
        Resource::Mcp => "MCP",
        Resource::McpAndroid => "Android MCP",
    };
    json!({
        "resource": name,
        "authorization_servers": [service.base_url],
        "scopes_supported": scopes,
        "bearer_methods_supported": ["header"],
        "resource_name": format!("{} {what}", service.name),
        "resource_documentation": documentation(service),
    })
}

/// The page for developers, of the server and of each resource.
fn documentation(service: &ServiceIdentity) -> String {
    format!("{}/docs", service.base_url)
}

/// The path of a URL.
pub(crate) fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("", |slash| &rest[slash..])
}

fn authority_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tollgate_filter::CreditsStep;
    use tollgate_identity::oauth::OAuthSettings;

    use super::*;

    fn discovery(base_url: &str, root_url: &str) -> Discovery {
        let service = ServiceIdentity {
            name: String::from("svc"),
            base_url: base_url.to_owned(),
            root_url: root_url.to_owned(),
        };
        let offered = Offered {
            resources: Resources::API,
            unsold: Scopes::NONE,
        };
        let config = OAuthConfig {
            server: OAuthSettings::default(),
            client_documents: true,
            tick_to_buy: false,
            credits_step: CreditsStep::Notice,
        };
        Discovery::new(&service, &config, &offered)
    }

    fn member(discovery: &Discovery, path: &str, host: &str, name: &str) -> Option<String> {
        let document = discovery.find_at(path, host)?;
        let value: Value = serde_json::from_slice(document.body()).expect("JSON");
        value[name].as_str().map(str::to_owned)
    }

    #[test]
    fn rfc9728_3_3_every_address_has_a_document_that_names_itself() {
        let one = ("https://svc.example", "https://svc.example");
        let hosts = ("https://api.svc.example", "https://svc.example");
        let deep = ("https://svc.example/gate", "https://svc.example");
        for ((base, root), host, path, resource) in [
            (one, "svc.example", "", "https://svc.example"),
            (one, "other", "", "https://svc.example"),
            (one, "svc.example", "/v1", "https://svc.example/v1"),
            (one, "svc.example", "/v1/", "https://svc.example/v1/"),
            (one, "svc.example", "/mcp", "https://svc.example/mcp"),
            (one, "svc.example", "/mcp/", "https://svc.example/mcp/"),
            (
                one,
                "svc.example",
                "/mcp/android",
                "https://svc.example/mcp/android",
            ),
            (hosts, "api.svc.example", "", "https://api.svc.example"),
            (hosts, "API.svc.example", "", "https://api.svc.example"),
            (hosts, "svc.example", "", "https://svc.example"),
            (hosts, "", "", "https://svc.example"),
            (
                hosts,
                "api.svc.example",
                "/v1",
                "https://api.svc.example/v1",
            ),
            (hosts, "svc.example", "/mcp", "https://api.svc.example/mcp"),
            (deep, "svc.example", "", "https://svc.example"),
            (deep, "svc.example", "/gate", "https://svc.example/gate"),
            (
                deep,
                "svc.example",
                "/gate/v1",
                "https://svc.example/gate/v1",
            ),
        ] {
            let found = discovery(base, root);
            let path = format!("{RESOURCE}{path}");
            let named = member(&found, &path, host, "resource");
            assert_eq!(named.as_deref(), Some(resource), "{base} {host} {path}");
        }
        let deep = discovery(deep.0, deep.1);
        for (path, resource) in [
            (
                "/gate/.well-known/oauth-protected-resource",
                "https://svc.example/gate",
            ),
            (
                "/gate/.well-known/oauth-protected-resource/v1",
                "https://svc.example/gate/v1",
            ),
            (
                "/gate/.well-known/oauth-protected-resource/mcp/android",
                "https://svc.example/gate/mcp/android",
            ),
            (
                "/.well-known/oauth-protected-resource/gate/mcp/android/",
                "https://svc.example/gate/mcp/android/",
            ),
        ] {
            let named = member(&deep, path, "svc.example", "resource");
            assert_eq!(named.as_deref(), Some(resource), "{path}");
        }
        for path in ["/v2", "/mcp/x", "/mcp//", "/v1//", "/"] {
            let path = format!("{RESOURCE}{path}");
            assert!(deep.find_at(&path, "svc.example").is_none(), "{path}");
        }
    }

    #[test]
    fn rfc8414_3_the_server_is_described_at_both_addresses_and_with_its_path_behind() {
        for (base, root, paths) in [
            ("https://svc.example", "https://svc.example", vec![""]),
            ("https://api.svc.example", "https://svc.example", vec![""]),
            (
                "https://svc.example/gate",
                "https://svc.example",
                vec!["", "/gate"],
            ),
        ] {
            let found = discovery(base, root);
            for path in paths {
                let path = format!("{SERVER}{path}");
                let issuer = member(&found, &path, "svc.example", "issuer");
                assert_eq!(issuer.as_deref(), Some(base), "{path}");
            }
        }
        let found = discovery("https://svc.example/gate", "https://svc.example");
        let path = "/gate/.well-known/oauth-authorization-server";
        assert!(member(&found, path, "", "issuer").is_some());
        assert!(found.find_at("/gate/.well-known/jwks.json", "").is_some());
        assert!(
            found
                .find_at("/.well-known/openid-configuration", "")
                .is_none()
        );
    }
}

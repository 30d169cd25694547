//! OpenAPI: the authorization server and discovery documents.

use serde_json::{Map, Value, json};

use super::operation::object;
use super::responses;
use super::schema::{open, reference};
use crate::installation::Installation;

/// Paths of the authorization server.
pub(super) fn paths(installation: &Installation) -> Map<String, Value> {
    let resource = format!("{}/v1", installation.service.base_url);
    let text = |means: &str| json!({"type": "string", "description": means});
    let pkce = json!({"type": "string", "minLength": 43, "maxLength": 128, "pattern": "^[A-Za-z0-9._~-]+$"});
    let mut paths = object([
        (
            "/oauth/register",
            json!({"post": with_responses(
                json!({
                    "operationId": "registerClient",
                    "summary": "Registers an OAuth client (RFC 7591). There is no secret",
                    "requestBody": {"required": true, "content": {"application/json": {
                        "schema": reference("ClientMetadata"),
                        "example": {"client_name": "Example", "redirect_uris": ["http://127.0.0.1/callback"]},
                    }}},
                }),
                201,
                json!({"application/json": {"schema": reference("RegisteredClient")}}),
            )}),
        ),
        (
            "/oauth/authorize",
            json!({"get": {
                "operationId": "authorize",
                "tags": ["access"],
                "summary": "Where an app sends a browser, so that a person decides",
                "security": [],
                "parameters": [
                    query("client_id", true, text("As registered.")),
                    query("redirect_uri", true, text("Exactly as registered.")),
                    query("response_type", true, json!({"const": "code"})),
                    query("code_challenge", true, pkce),
                    query("code_challenge_method", true, json!({"const": "S256"})),
                    query("scope", false, text("Scopes of the resource, separated by spaces.")),
                    query("resource", false, json!({"type": "string", "description": "Resource of the token (RFC 8707).", "examples": [resource]})),
                    query("state", false, text("Returned unchanged.")),
                ],
                "responses": {
                    "303": {"description": "To the consent page, or back to the app with an error", "headers": redirect_headers()},
                    "default": {
                        "description": "An unverified client or redirect URI is reported on a page, never by redirect",
                        "headers": responses::fields(&[], false),
                        "content": {"text/html": {"schema": {"type": "string"}}, "application/json": {"schema": reference("OAuthError")}},
                    },
                },
            }}),
        ),
        (
            "/oauth/token",
            json!({"post": with_responses(
                json!({
                    "operationId": "requestToken",
                    "summary": "Exchanges a code for an access token (RFC 6749 section 4.1.3)",
                    "requestBody": form(
                        &["grant_type"],
                        json!({
                            "grant_type": {"enum": ["authorization_code", "refresh_token"]},
                            "client_id": text("As registered."),
                            "code": text("As it came back from authorization; it works once."),
                            "redirect_uri": text("The one of the authorization request."),
                            "code_verifier": {"type": "string", "description": "The code verifier of the code challenge (RFC 7636).", "minLength": 43, "maxLength": 128},
                            "resource": text("The one of the authorization request."),
                            "refresh_token": text("Where refresh tokens are given out."),
                        }),
                    ),
                }),
                200,
                json!({"application/json": {"schema": reference("AccessToken")}}),
            )}),
        ),
        (
            "/oauth/revoke",
            json!({"post": with_responses(
                json!({
                    "operationId": "revokeToken",
                    "summary": "Revokes a token (RFC 7009). 200 for any token",
                    "requestBody": form(
                        &["token"],
                        json!({"token": text("An access token or a refresh token."), "token_type_hint": {"type": "string", "examples": ["access_token"]}}),
                    ),
                }),
                200,
                Value::Null,
            )}),
        ),
        ("/keys/revoke", json!({"post": revoke_key()})),
        (
            "/.well-known/oauth-authorization-server",
            metadata(
                "getAuthorizationServer",
                "Metadata of the authorization server (RFC 8414)",
                &[
                    "issuer",
                    "authorization_endpoint",
                    "token_endpoint",
                    "registration_endpoint",
                    "revocation_endpoint",
                    "jwks_uri",
                ],
            ),
        ),
        (
            "/.well-known/oauth-protected-resource/v1",
            metadata(
                "getProtectedResource",
                "Metadata of the API as a protected resource (RFC 9728)",
                &["resource", "authorization_servers", "scopes_supported"],
            ),
        ),
        (
            "/.well-known/jwks.json",
            metadata("getKeySet", "An empty set: tokens are opaque", &["keys"]),
        ),
        (
            "/.well-known/ucp",
            metadata("getUcpProfile", "UCP profile of the service", &["ucp"]),
        ),
    ]);
    if !installation.protocols.paypal {
        paths.remove("/.well-known/ucp");
    }
    paths
}

/// Revocation of the key that is presented.
fn revoke_key() -> Value {
    let answer = |description: &str, is_good| json!({"description": description, "headers": responses::fields(&[], is_good)});
    let mut refused = answer("Rejected, or temporarily unavailable", false);
    refused["content"] = json!({"application/json": {"schema": reference("Error")}});
    json!({
        "operationId": "revokeKey",
        "tags": ["access"],
        "summary": "Revokes the API key in `Authorization`, for finders of a leaked one. 200 for any key",
        "security": [{"apiKey": []}],
        "responses": {
            "200": answer("Nothing is said of the key. Its owner gets a mail if it was revoked now", true),
            "default": refused,
        },
    })
}

/// Headers of a redirect.
fn redirect_headers() -> Value {
    let mut fields = responses::fields(&[], true);
    fields["Location"] = json!({
        "description": "Where the browser goes.",
        "schema": {"type": "string", "format": "uri-reference"},
    });
    fields
}

fn query(name: &str, required: bool, schema: Value) -> Value {
    json!({"name": name, "in": "query", "required": required, "schema": schema})
}

fn form(required: &[&str], properties: Value) -> Value {
    json!({
        "required": true,
        "content": {"application/x-www-form-urlencoded": {"schema": open(required, properties)}},
    })
}

/// Adds responses to a public operation: success, and errors in the OAuth format.
fn with_responses(mut operation: Value, status: u16, content: Value) -> Value {
    let mut good =
        json!({"description": operation["summary"], "headers": responses::fields(&[], true)});
    if !content.is_null() {
        good["content"] = content;
    }
    operation["tags"] = json!(["access"]);
    operation["security"] = json!([]);
    operation["responses"] = json!({
        status.to_string(): good,
        "default": {
            "description": "Rejected, or temporarily unavailable",
            "headers": responses::fields(&[], false),
            "content": {"application/json": {"schema": reference("OAuthError")}},
        },
    });
    operation
}

/// A discovery document with at least these members.
fn metadata(id: &str, summary: &str, required: &[&str]) -> Value {
    let schema = json!({"type": "object", "required": required});
    let operation = json!({"operationId": id, "summary": summary});
    json!({"get": with_responses(operation, 200, json!({"application/json": {"schema": schema}}))})
}

/// Schemas of the authorization server, by name.
pub(super) fn schemas() -> Map<String, Value> {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    let client = json!({
        "client_name": {"type": "string", "description": "What people are shown."},
        "redirect_uris": {"type": "array", "minItems": 1, "items": {"type": "string", "description": "https, or http on the own computer."}},
        "grant_types": {"type": "array", "items": {"enum": ["authorization_code", "refresh_token"]}},
        "response_types": {"type": "array", "items": {"const": "code"}},
        "token_endpoint_auth_method": {"const": "none"},
    });
    let mut registered = client.clone();
    registered["client_id"] = text.clone();
    registered["client_id_issued_at"] = json!({"type": "integer"});
    registered["grant_types"] = texts;
    object([
        ("ClientMetadata", open(&["redirect_uris"], client)),
        (
            "RegisteredClient",
            open(
                &["client_id", "redirect_uris", "token_endpoint_auth_method"],
                registered,
            ),
        ),
        (
            "AccessToken",
            open(
                &["access_token", "token_type", "expires_in", "scope"],
                json!({
                    "access_token": text,
                    "token_type": {"const": "Bearer"},
                    "expires_in": {"type": "integer", "minimum": 1},
                    "scope": text,
                    "refresh_token": text,
                }),
            ),
        ),
        (
            "OAuthError",
            open(
                &["error"],
                json!({"error": text, "error_description": text}),
            ),
        ),
    ])
}

//! The OpenAPI document of the admin API (OpenAPI 3.1).

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::endpoint::ListedEndpoint;
use super::route::BASE;
use crate::admin::operations::endpoints;

/// Statuses of errors, with their causes.
const ERRORS: [(&str, &str); 9] = [
    ("400", "The request is invalid."),
    ("401", "The token is missing or invalid."),
    ("403", "The role of the token does not allow it."),
    ("404", "What the request names does not exist."),
    (
        "409",
        "The request contradicts the state, or the `Idempotency-Key` was used with another amount.",
    ),
    ("413", "The body is too large."),
    ("415", "The body is not `application/json`."),
    ("429", "Too many invalid tokens from this address."),
    (
        "503",
        "The store is not available, or an upgrade is under way: try again.",
    ),
];

/// Every error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error")]
struct ErrorAnswer {
    error: ErrorMembers,
}

/// What is wrong, and what to do.
#[derive(Debug, Serialize, JsonSchema)]
struct ErrorMembers {
    /// How to correct the request.
    message: String,
    /// The category.
    #[serde(rename = "type")]
    kind: String,
    /// The invalid member or parameter.
    param: Option<String>,
    /// The cause.
    code: String,
}

/// The document.
pub(crate) fn openapi() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    let mut generator = settings.into_generator();
    let error = generator.subschema_for::<ErrorAnswer>();
    let mut paths = Map::new();
    for endpoint in endpoints() {
        let path = paths
            .entry(format!("{BASE}{}", endpoint.route.path))
            .or_insert_with(|| json!({}));
        let method = endpoint.route.method.as_str().to_lowercase();
        path[method] = operation(endpoint, &mut generator);
    }
    let responses = ERRORS.iter().map(|(status, description)| {
        let content = json!({ "application/json": { "schema": error } });
        let response = json!({ "description": description, "content": content });
        (format!("Error{status}"), response)
    });
    let responses: Map<String, Value> = responses.collect();
    let schemas = generator.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tollgate admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What the command line of tollgate does, over HTTP at the admin address. Tokens are those of `[[admin.token]]` in \
                            the settings; every change is recorded in the audit log.",
        },
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas,
            "responses": responses,
        },
    })
}

fn operation(endpoint: &ListedEndpoint, generator: &mut SchemaGenerator) -> Value {
    let route = &endpoint.route;
    let text = json!({ "type": "string" });
    let path = route
        .names()
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": text }));
    let query = route.query.iter().map(|(name, description)| {
        json!({ "name": name, "in": "query", "description": description, "schema": text })
    });
    let mut parameters: Vec<Value> = path.chain(query).collect();
    if route.has_key {
        parameters.push(json!({
            "name": "Idempotency-Key",
            "in": "header",
            "required": true,
            "description": "The reference of the booking: 1 to 255 visible ASCII characters and spaces, such as an invoice number.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255 },
        }));
    }
    let answer = (endpoint.schema)(generator);
    let mut responses = Map::new();
    let content = json!({ "application/json": { "schema": answer } });
    let request_id = json!({ "X-Request-Id": {
        "description": "The id of the request, which the audit log has.", "schema": text,
    } });
    responses.insert(
        route.status.as_str().to_owned(),
        json!({ "description": route.summary, "content": content, "headers": request_id }),
    );
    for (status, _) in ERRORS {
        let reference = json!({ "$ref": format!("#/components/responses/Error{status}") });
        responses.insert(status.to_owned(), reference);
    }
    let role = route.role.word();
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.summary,
        "description": format!("Needs the role `{role}`."),
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(body) = route.body {
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": body(generator) } },
        });
    }
    operation
}

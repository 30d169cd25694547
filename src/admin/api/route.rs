//! The route of an endpoint of the admin API: method, path, role, parameters, and the text of the OpenAPI document.

use http::{Method, StatusCode};
use schemars::{Schema, SchemaGenerator};

use crate::config::AdminRole;

/// The prefix of every endpoint's path.
pub(super) const BASE: &str = "/admin/v1";

/// Makes the schema of a message.
pub(super) type MakeSchema = fn(&mut SchemaGenerator) -> Schema;

/// A query parameter: name and description.
type Parameter = (&'static str, &'static str);

/// The route of an endpoint.
pub(in crate::admin) struct Route {
    /// The `operationId` in the OpenAPI document.
    pub(super) id: &'static str,
    pub(super) method: Method,
    /// The path after [`BASE`]; `{NAME}` is any segment.
    pub(super) path: &'static str,
    /// The role required of the token.
    pub(super) role: AdminRole,
    pub(super) summary: &'static str,
    pub(super) query: &'static [Parameter],
    /// Whether the field `Idempotency-Key` is required.
    pub(super) has_key: bool,
    pub(super) body: Option<MakeSchema>,
    pub(super) status: StatusCode,
}

impl Route {
    /// A route for reads, with the role `read`.
    pub(in crate::admin) const fn read(
        id: &'static str,
        path: &'static str,
        summary: &'static str,
    ) -> Route {
        Route::change(id, Method::GET, path, summary).role(AdminRole::Read)
    }

    /// A route for changes, with the role `operate`.
    pub(in crate::admin) const fn change(
        id: &'static str,
        method: Method,
        path: &'static str,
        summary: &'static str,
    ) -> Route {
        Route {
            id,
            method,
            path,
            role: AdminRole::Operate,
            summary,
            query: &[],
            has_key: false,
            body: None,
            status: StatusCode::OK,
        }
    }

    /// With another role.
    pub(in crate::admin) const fn role(mut self, role: AdminRole) -> Route {
        self.role = role;
        self
    }

    /// With query parameters.
    pub(in crate::admin) const fn query(mut self, query: &'static [Parameter]) -> Route {
        self.query = query;
        self
    }

    /// With a required field `Idempotency-Key`.
    pub(in crate::admin) const fn idempotent(mut self) -> Route {
        self.has_key = true;
        self
    }

    /// With a body.
    pub(in crate::admin) const fn body(mut self, schema: MakeSchema) -> Route {
        self.body = Some(schema);
        self
    }

    /// With another status of success.
    pub(in crate::admin) const fn status(mut self, status: StatusCode) -> Route {
        self.status = status;
        self
    }

    /// The values of the names in the route's path; `None` for a path of another route.
    pub(super) fn matches<'p>(&self, path: &'p str) -> Option<Vec<&'p str>> {
        let (mut names, mut given) = (self.path.split('/'), path.split('/'));
        let mut values = Vec::new();
        loop {
            match (names.next(), given.next()) {
                (None, None) => return Some(values),
                (Some(name), Some(value)) if name.starts_with('{') && !value.is_empty() => {
                    values.push(value);
                }
                (Some(name), Some(value)) if name == value => {}
                _ => return None,
            }
        }
    }

    /// The names of the path.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let segments = self.path.split('/');
        segments.filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }
}

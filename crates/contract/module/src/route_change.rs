//! A route that a program adds to the route table, or changes in the table.

/// A route of a program, with the keys of `[[route_change]]` in the settings. A route that is not in the table is added; in a known route
/// the given values are changed.
#[derive(Clone, Debug, Default)]
pub struct RouteChange {
    /// The pattern of the path.
    pub path: String,
    /// The methods. Optional for a route to change.
    pub methods: Option<Vec<String>>,
    /// Names of filters, outermost first.
    pub chain: Option<Vec<String>>,
    /// Maximum size of a request's body in bytes.
    pub body_bytes_max: Option<u64>,
    /// The scope that a credential must have.
    pub scope: Option<String>,
    /// Scopes of which a credential must have at least one, in place of `scope`.
    pub scopes_any: Option<Vec<String>>,
    /// The rate class for requests to the route.
    pub class: Option<String>,
    /// The CORS policy.
    pub cors: Option<String>,
    /// The format of errors.
    pub errors: Option<String>,
}

impl RouteChange {
    /// A change at the path. Further fields are set directly, or by the calls below.
    pub fn of(path: &str) -> RouteChange {
        RouteChange {
            path: path.to_owned(),
            ..RouteChange::default()
        }
    }

    /// Names the methods.
    #[must_use]
    pub fn methods(mut self, methods: &[&str]) -> RouteChange {
        self.methods = Some(owned(methods));
        self
    }

    /// Names the filters, outermost first.
    #[must_use]
    pub fn chain(mut self, chain: &[&str]) -> RouteChange {
        self.chain = Some(owned(chain));
        self
    }

    /// Names the scope that a credential must have.
    #[must_use]
    pub fn scope(mut self, scope: &str) -> RouteChange {
        self.scope = Some(scope.to_owned());
        self
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

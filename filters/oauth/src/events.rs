//! Events at the endpoints of the authorization server, for the metrics.

use tollgate_counters::labels;

labels! {
    /// An event of the authorization server.
    pub(crate) enum OAuthEvent {
        /// A client registered.
        Registered = "registered",
        /// A code was exchanged for tokens.
        CodeExchanged = "code_exchanged",
        /// A refresh token was exchanged for tokens.
        Refreshed = "refreshed",
        /// A token request was refused for its grant: used, expired, of another client, resource or scope.
        GrantRefused = "grant_refused",
        /// A revocation was answered, of a valid token or not.
        Revoked = "revoked",
    }
}

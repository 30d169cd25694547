//! The filter `user-member`: sets `user` in the request's body to the account's id, and leaves every other byte as it is.

use tollgate::filter::{
    Body, Contract, Exchange, FailureMode, Filter, Outcome, Phase, Principal, Step,
};
use tollgate::openai::ObjectEdit;

/// Sets `user` for the provider, which limits abuse by it.
pub(crate) struct UserMember;

impl Filter for UserMember {
    fn name(&self) -> &'static str {
        "user-member"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Json {
                bytes_max: 20 * 1024 * 1024,
            },
            on_failure: FailureMode::Deny,
        }
    }

    /// Before `completions`, which validates what it reads here.
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if let Some(principal) = exchange.get::<Principal>() {
            let account = principal.account.to_string();
            // What is no object is refused by `completions`, which says what is wrong with it.
            if let Ok(edit) = ObjectEdit::read(&exchange.request.body) {
                exchange.request.body = edit.set_text("user", &account).apply();
            }
        }
        Step::now(Outcome::Continue)
    }
}

//! A hook that runs before a charge.

use crate::{Exchange, Tokens};

/// The work of a filter before another filter charges for a whole response. Only the amount is still unknown. Left on the exchange, and
/// called once by the filter that charges. Not called when nothing is charged, or for a partial response.
///
/// The work puts data on the exchange that has to be durable together with the charge, as a type that the charging filter knows.
pub struct BeforeCharge(Box<Act>);

type Act = dyn FnOnce(&mut Exchange, Tokens, Estimated) + Send + Sync;

/// Whether the gateway counted the tokens because the provider did not report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimated(pub bool);

impl BeforeCharge {
    /// Runs `act` before the charge.
    pub fn new(
        act: impl FnOnce(&mut Exchange, Tokens, Estimated) + Send + Sync + 'static,
    ) -> BeforeCharge {
        BeforeCharge(Box::new(act))
    }

    /// Runs the work: the charge will be for `tokens`.
    pub fn act(self, exchange: &mut Exchange, tokens: Tokens, estimated: Estimated) {
        (self.0)(exchange, tokens, estimated);
    }
}

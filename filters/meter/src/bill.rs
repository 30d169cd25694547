//! The bill of an answer: release or settle the hold, decided for every way an answer can end.

use tollgate_filter::{AnswerUsage, Ending, Tokens};
use tollgate_money::{Micros, Price};

/// The action for the hold of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bill {
    /// Release the hold: no part of the answer reached the client.
    Release,
    /// Settle the hold for the used tokens.
    Settle {
        /// The source of the token counts.
        tokens: Source,
        /// Whether the request price is due. Only a successful request pays the request price.
        succeeded: bool,
        /// Whether the answer was cut short.
        incomplete: bool,
    },
}

/// The source of a bill's token counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The provider reported the tokens.
    Reported(Tokens),
    /// Counted by us, from the request's text and the answer's text.
    Counted,
}

impl Bill {
    /// The bill for an answer with this ending.
    pub(crate) fn of(ending: Ending, usage: &AnswerUsage) -> Bill {
        let tokens = match usage.reported {
            // A completion reads at least a token: a provider that reports zero has not counted.
            Some(tokens) if tokens != Tokens::default() => Source::Reported(tokens),
            _ => Source::Counted,
        };
        match ending {
            Ending::Complete | Ending::Answered => Bill::Settle {
                tokens,
                succeeded: true,
                incomplete: false,
            },
            // Headers and role are no output: the client disconnected before any output.
            Ending::GoneDuring if tokens == Source::Counted && usage.is_silent() => Bill::Release,
            // The provider finished its work; the client disconnected.
            Ending::GoneDuring => Bill::Settle {
                tokens,
                succeeded: true,
                incomplete: true,
            },
            Ending::UpstreamCut(_) if usage.is_silent() => Bill::Release,
            Ending::UpstreamCut(_) => Bill::Settle {
                tokens,
                succeeded: false,
                incomplete: true,
            },
            Ending::GoneBefore
            | Ending::UpstreamFailed(_)
            | Ending::Refused
            | Ending::Unsettled
            | Ending::Aborted => Bill::Release,
        }
    }
}

/// The price of an answer, without the request price for an answer without success.
pub(crate) fn price(price: &Price, succeeded: bool) -> Price {
    Price {
        request: if succeeded {
            price.request
        } else {
            tollgate_money::Micros::ZERO
        },
        ..*price
    }
}

/// `ppm` millionths of an amount, rounded down: rounding favours the account.
pub(crate) fn part_of(amount: Micros, ppm: u32) -> Micros {
    let part = i128::from(amount.get()) * i128::from(ppm) / 1_000_000;
    // A part of a 64-bit amount; the maximum is a million millionths, the whole amount.
    Micros::new(i64::try_from(part).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use tollgate_filter::UpstreamFault;

    use super::*;

    const TOKENS: Tokens = Tokens {
        prompt: 5,
        completion: 4,
    };
    const REPORTED: Source = Source::Reported(TOKENS);
    const CUT: Ending = Ending::UpstreamCut(UpstreamFault::Cut);

    #[test]
    fn every_ending_has_one_bill() {
        //    ending, reported, text, bill
        check(
            Ending::Complete,
            Some(TOKENS),
            "text",
            settle(REPORTED, true, false),
        );
        check(
            Ending::Complete,
            None,
            "text",
            settle(Source::Counted, true, false),
        );
        check(
            Ending::Complete,
            None,
            "",
            settle(Source::Counted, true, false),
        );
        check(
            Ending::Answered,
            Some(TOKENS),
            "text",
            settle(REPORTED, true, false),
        );
        check(
            Ending::GoneDuring,
            Some(TOKENS),
            "text",
            settle(REPORTED, true, true),
        );
        check(
            Ending::GoneDuring,
            None,
            "text",
            settle(Source::Counted, true, true),
        );
        check(Ending::GoneDuring, None, "", Bill::Release);
        check(CUT, Some(TOKENS), "text", settle(REPORTED, false, true));
        check(CUT, None, "text", settle(Source::Counted, false, true));
        check(CUT, Some(TOKENS), "", Bill::Release);
        check(CUT, None, "", Bill::Release);
        check(Ending::GoneBefore, Some(TOKENS), "text", Bill::Release);
        check(
            Ending::UpstreamFailed(UpstreamFault::Timeout),
            None,
            "",
            Bill::Release,
        );
        check(Ending::Refused, None, "", Bill::Release);
        check(Ending::Unsettled, None, "", Bill::Release);
        check(Ending::Aborted, None, "", Bill::Release);
    }

    #[test]
    fn a_provider_that_reports_nothing_but_zeros_has_not_counted() {
        let zeros = Some(Tokens::default());
        check(
            Ending::Complete,
            zeros,
            "text",
            settle(Source::Counted, true, false),
        );
    }

    #[test]
    fn pictures_and_sounds_are_output_too() {
        let usage = AnswerUsage {
            media_bytes: 1,
            ..AnswerUsage::default()
        };
        assert_eq!(Bill::of(CUT, &usage), settle(Source::Counted, false, true));
        assert_eq!(
            Bill::of(Ending::GoneDuring, &usage),
            settle(Source::Counted, true, true)
        );
    }

    fn settle(tokens: Source, succeeded: bool, incomplete: bool) -> Bill {
        Bill::Settle {
            tokens,
            succeeded,
            incomplete,
        }
    }

    fn check(ending: Ending, reported: Option<Tokens>, text: &str, bill: Bill) {
        let usage = AnswerUsage {
            reported,
            text: text.into(),
            copy: None,
            media_bytes: 0,
        };
        assert_eq!(
            Bill::of(ending, &usage),
            bill,
            "{} with {reported:?} and {text:?}",
            ending.word()
        );
    }
}

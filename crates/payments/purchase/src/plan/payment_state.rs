//! Payment states and retry actions in answers to buyers' programs, the same on every route.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($case:ident = $word:literal: $meaning:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = $meaning] $case,)+
        }

        impl $name {
            /// Every state, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$case),+];

            /// The value in an answer.
            pub const fn word(self) -> &'static str {
                match self {
                    $($name::$case => $word,)+
                }
            }

            /// The meaning, as the documentation states it.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $($name::$case => $meaning,)+
                }
            }
        }
    };
}

words! {
    /// State of a payment (`payment_state`).
    PaymentState {
        Required = "required": "Nothing has been paid yet, and no task is running.",
        ApprovalPending = "approval_pending": "The owner of the account has to agree at the payment provider.",
        Processing = "processing": "Money may be moving. Paying again could pay twice.",
        Refused = "refused": "This payment was not taken, and nothing has moved.",
        Failed = "failed": "It was tried, and it is certain that nothing has moved.",
        Unavailable = "unavailable": "This way of paying does not work at the moment; nothing has moved.",
        Paid = "paid": "Paid, and the plan is active.",
    }
}

words! {
    /// The next action (`retry_action`).
    RetryAction {
        Pay = "pay": "Pay as the challenge says, and send the request again with the payment.",
        ApproveThenRetry = "approve_then_retry": "Have the owner open the approval URL and agree; then send the request again with the credential.",
        RetrySame = "retry_same": "Send the very same request again after `Retry-After`, with the same payment. Do not make a new one.",
        FixRequest = "fix_request": "Correct the request as the message says, and send it again. Nothing was paid; do not pay because of it.",
        PayAgain = "pay_again": "Make a new payment as the challenge says, and send the request again with it.",
        ContactSupport = "contact_support": "Write to support: a person has to look at this.",
        None = "none": "Nothing is left to do.",
    }
}

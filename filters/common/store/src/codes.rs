//! Every small integer that is stored in place of a word, in one file.
//!
//! A code is for ever: rows written years ago carry it. New words take new numbers; none is reused.

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$word_doc])* $word,)+
        }

        impl $name {
            /// Every word, in the order of the codes.
            pub const ALL: &'static [$name] = &[$($name::$word),+];

            /// The stored number.
            pub const fn code(self) -> i64 {
                match self {
                    $($name::$word => $code,)+
                }
            }

            /// The word of a stored number; `None` for a number that no version up to this one has written.
            pub const fn from_code(code: i64) -> Option<$name> {
                match code {
                    $($code => Some($name::$word),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// Whether an account may spend.
    AccountStatus {
        /// In use.
        Active = 0,
        /// Barred by the operator; its credentials are refused.
        Suspended = 1,
        /// Left for good; kept because its entries are.
        Closed = 2,
    }
}

codes! {
    /// Whose answers the completion cache may give to an account, and who may be given its own.
    CacheScope {
        /// Everyone's.
        Shared = 0,
        /// Its own only.
        Account = 1,
        /// None.
        Off = 2,
    }
}

codes! {
    /// What a credential is.
    CredentialKind {
        /// A developer API key.
        ApiKey = 1,
        /// An OAuth access token (RFC 6749 section 1.4).
        AccessToken = 2,
        /// A refresh token (RFC 6749 section 1.5).
        RefreshToken = 3,
        /// An authorization code (RFC 6749 section 1.3.1).
        AuthorizationCode = 4,
    }
}

codes! {
    /// Where a login's one-time codes go.
    LoginKind {
        /// An e-mail address.
        Email = 1,
        /// A phone number in E.164 form.
        Phone = 2,
    }
}

codes! {
    /// What a one-time code is for.
    CodePurpose {
        /// Signing in to an account.
        SignIn = 1,
        /// Making an account, or signing in to the one that there is.
        SignUp = 2,
        /// Confirming, within a session, who is there.
        Confirm = 3,
    }
}

codes! {
    /// What an entry of the ledger does.
    EntryKind {
        /// Promises credit to one operation.
        Hold = 1,
        /// Takes what the operation cost and frees the rest of its hold.
        Settle = 2,
        /// Frees a hold whole.
        Release = 3,
        /// Takes a cost without a hold before it.
        Charge = 4,
        /// Credit bought with outside money.
        TopUp = 5,
        /// Credit given by the operator.
        Grant = 6,
        /// Revenue given back as credit.
        Refund = 7,
        /// Credit that ran out by time.
        Expiry = 8,
        /// A difference put right by the operator, up or down.
        Correction = 9,
    }
}

codes! {
    /// The other side of an entry: the account that gets `-(d_avail + d_held)`.
    Contra {
        /// Nobody: the entry only moves between the two fields of its account.
        None = 0,
        /// Money from outside.
        Outside = 1,
        /// Revenue.
        Revenue = 2,
        /// Credit granted.
        Granted = 3,
        /// Written off.
        WriteOff = 4,
        /// Expired.
        Expiry = 5,
        /// Corrected.
        Correction = 6,
    }
}

codes! {
    /// The endpoint that an operation was billed at, or an idempotency key belongs to.
    Endpoint {
        /// Chat completions.
        Chat = 1,
        /// Text completions.
        Completions = 2,
        /// The plan, paid by x402.
        X402 = 3,
        /// The plan, paid by MPP.
        Mpp = 4,
        /// A checkout session made at the service's own address.
        Checkout = 5,
        /// A checkout session made as UCP has it.
        UcpCreate = 6,
        /// One changed.
        UcpUpdate = 7,
        /// One completed.
        UcpComplete = 8,
        /// One cancelled.
        UcpCancel = 9,
        /// No place: the id of a payment challenge, which is answered once.
        Challenge = 10,
    }
}

codes! {
    /// The time over which a credential's spending counts against its cap.
    CapPeriod {
        /// All of it.
        Total = 0,
        /// Each calendar month, UTC.
        Month = 1,
    }
}

codes! {
    /// How far a purchase of credits has come.
    TopUpState {
        /// Decided here; the provider may have heard of it or not.
        Created = 0,
        /// The provider has an order, and the buyer decides.
        Open = 1,
        /// The provider was asked to take the money, or is about to be; what came of it shows only there.
        Capturing = 2,
        /// The provider has taken the money and does not have it yet.
        Pending = 3,
        /// Paid and credited.
        Captured = 4,
        /// Over, and nothing was taken.
        Failed = 5,
    }
}

codes! {
    /// How the plan is paid.
    Route {
        /// A transfer that the buyer has signed, sent to the chain by a facilitator.
        X402 = 1,
        /// PayPal, which charges again each month.
        PayPal = 2,
    }
}

codes! {
    /// What was last heard of a subscription.
    SubscriptionStatus {
        /// Paid.
        Active = 1,
        /// The next period could not be charged for.
        PastDue = 2,
        /// Its owner has ended it, or the money went back.
        Canceled = 3,
        /// It ran out.
        Expired = 4,
    }
}

codes! {
    /// Whether a payment is still ours.
    PaymentStatus {
        /// It is.
        Paid = 1,
        /// It went back to the buyer.
        Returned = 2,
    }
}

codes! {
    /// How far a checkout has come.
    CheckoutState {
        /// Nothing to be bought stands in it yet.
        Incomplete = 0,
        /// Its owner has to agree.
        Waiting = 1,
        /// Its owner came back from the payment provider, which could not be asked yet.
        Ready = 2,
        /// Its owner has agreed, and the first payment has yet to come.
        Placing = 3,
        /// Its owner has the plan.
        Completed = 4,
        /// Ended before that.
        Canceled = 5,
    }
}

codes! {
    /// How far a mandate has come.
    MandateState {
        /// Decided here; the provider may have heard of it or not.
        Created = 0,
        /// The provider has it, and the buyer decides.
        Open = 1,
        /// The buyer has agreed, and nothing has been paid yet: money may move at any time.
        Agreed = 2,
        /// Paid at least once, and charged again each month.
        Active = 3,
        /// Cancellation requested, not confirmed yet; the paid period stays.
        CancelPending = 4,
        /// Nothing more is charged; what it has paid for stays.
        Ended = 5,
        /// A duplicate of another payment for the plan: it is being cancelled, and every charge that bought nothing is refunded.
        Duplicate = 6,
        /// No longer offered. The buyer may still agree to it at the provider's.
        Dropped = 7,
        /// Over, and nothing was kept.
        Over = 8,
    }
}

codes! {
    /// How far a signed transfer has come.
    AuthorizationState {
        /// Found good here; nobody was asked.
        Seen = 0,
        /// Sent, or about to be.
        Settling = 1,
        /// Sent, and nobody knows what became of it.
        Unknown = 2,
        /// The money has moved, and what it pays for was given.
        Settled = 3,
        /// It can never move money any more, and has not.
        Dead = 4,
        /// It was refused before it was sent, and nothing moved.
        Refused = 5,
        /// It was sent and refused, and nothing but the facilitator's word says that nothing moved.
        RefusedAfterSubmit = 6,
    }
}

codes! {
    /// What a row of the change feed is about.
    ChangeKind {
        /// An account's status, class or cache scope.
        Account = 1,
        /// A credential made or revoked.
        Credential = 2,
        /// A grant revoked, or all grants of an account.
        Grant = 3,
    }
}

impl Route {
    /// Its word in answers, logs and references.
    pub const fn word(self) -> &'static str {
        match self {
            Route::X402 => "x402",
            Route::PayPal => "paypal",
        }
    }
}

impl EntryKind {
    /// The other side that this kind books against.
    pub const fn contra(self) -> Contra {
        match self {
            EntryKind::Hold | EntryKind::Release => Contra::None,
            EntryKind::Settle | EntryKind::Charge | EntryKind::Refund => Contra::Revenue,
            EntryKind::TopUp => Contra::Outside,
            EntryKind::Grant => Contra::Granted,
            EntryKind::Expiry => Contra::Expiry,
            EntryKind::Correction => Contra::Correction,
        }
    }

    /// 0 for an entry that opens an operation (or is all of it), 1 for one that resolves a hold.
    pub const fn phase(self) -> i64 {
        match self {
            EntryKind::Settle | EntryKind::Release => 1,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back_as_its_own_word() {
        for word in EntryKind::ALL {
            assert_eq!(EntryKind::from_code(word.code()), Some(*word));
        }
        for word in Contra::ALL {
            assert_eq!(Contra::from_code(word.code()), Some(*word));
        }
        assert_eq!(EntryKind::from_code(0), None, "0 is no kind of entry");
    }
}

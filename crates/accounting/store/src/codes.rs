//! Stored codes: every enumeration that is stored as a small integer, in one file.
//!
//! A code is permanent: rows written years ago contain the code. New variants take new numbers; no number is reused.

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$word_doc])* $word,)+
        }

        impl $name {
            /// Every variant, in the order of the codes.
            pub const ALL: &'static [$name] = &[$($name::$word),+];

            /// The stored number.
            pub const fn code(self) -> i64 {
                match self {
                    $($name::$word => $code,)+
                }
            }

            /// The variant of a stored number; `None` for a number that no version up to this version has written.
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
        /// Suspended by the operator; the account's credentials are refused.
        Suspended = 1,
        /// Closed permanently; the account is kept because its entries are kept.
        Closed = 2,
    }
}

codes! {
    /// The accounts that share completion cache entries with the account.
    CacheScope {
        /// Every account.
        Shared = 0,
        /// Only the account.
        Account = 1,
        /// No account.
        Off = 2,
    }
}

codes! {
    /// The type of a credential.
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
    /// Where a login's one-time codes are sent.
    LoginKind {
        /// An e-mail address.
        Email = 1,
        /// A phone number in E.164 form.
        Phone = 2,
    }
}

codes! {
    /// The purpose of a one-time code.
    CodePurpose {
        /// Signing in to an account.
        SignIn = 1,
        /// Creating an account, or signing in to an existing account.
        SignUp = 2,
        /// Confirming the person's identity within a session.
        Confirm = 3,
    }
}

codes! {
    /// The subject of a notice to the owner of an account.
    NoticeKind {
        /// An API key was revoked by someone who has the key and no session.
        KeyRevoked = 1,
    }
}

codes! {
    /// The kind of a ledger entry.
    EntryKind {
        /// Reserves credit for one operation.
        Hold = 1,
        /// Charges the operation's cost and frees the rest of the hold.
        Settle = 2,
        /// Frees a hold in full.
        Release = 3,
        /// Charges a cost without a previous hold.
        Charge = 4,
        /// Credit bought with outside money.
        TopUp = 5,
        /// Credit granted by the operator.
        Grant = 6,
        /// Revenue refunded as credit.
        Refund = 7,
        /// Expired credit.
        Expiry = 8,
        /// A correction by the operator, up or down.
        Correction = 9,
        /// Credit moved between an account's shared balance and the node of the journal.
        Allotment = 10,
        /// Seals the carried state of removed commits. No change of a balance.
        Carry = 11,
    }
}

codes! {
    /// The contra account of an entry, which receives `-(d_avail + d_held)`.
    Contra {
        /// No contra account: the entry only moves between the two fields of its account.
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
        /// The account's shared balance.
        Shared = 7,
    }
}

codes! {
    /// The endpoint of an operation's bill, or the endpoint scope of an idempotency key.
    Endpoint {
        /// Chat completions.
        Chat = 1,
        /// Text completions.
        Completions = 2,
        /// The plan, paid by x402.
        X402 = 3,
        /// The plan, paid by MPP.
        Mpp = 4,
        /// A checkout session created at the service's own endpoint.
        Checkout = 5,
        /// A UCP checkout session created.
        UcpCreate = 6,
        /// A UCP checkout session updated.
        UcpUpdate = 7,
        /// A UCP checkout session completed.
        UcpComplete = 8,
        /// A UCP checkout session cancelled.
        UcpCancel = 9,
        /// No endpoint: the id of a payment challenge, which is answered once.
        Challenge = 10,
    }
}

codes! {
    /// State of a credit purchase.
    TopUpState {
        /// Stored here; receipt by the provider is unknown.
        Created = 0,
        /// The provider has an order; the buyer decides.
        Open = 1,
        /// The capture was requested, or is about to be; only the provider knows the result.
        Capturing = 2,
        /// The provider has accepted the payment and has not received the money yet.
        Pending = 3,
        /// Paid and credited.
        Captured = 4,
        /// Finished; nothing was charged.
        Failed = 5,
    }
}

codes! {
    /// The payment route of the plan.
    Route {
        /// A transfer signed by the buyer, submitted to the chain by a facilitator.
        X402 = 1,
        /// PayPal, with a monthly charge.
        PayPal = 2,
    }
}

codes! {
    /// Last known status of a subscription.
    SubscriptionStatus {
        /// Paid.
        Active = 1,
        /// The charge for the next period failed.
        PastDue = 2,
        /// Cancelled by its owner, or the payment was returned.
        Canceled = 3,
        /// The plan has expired.
        Expired = 4,
    }
}

codes! {
    /// Whether a payment was kept or returned.
    PaymentStatus {
        /// Kept.
        Paid = 1,
        /// Returned to the buyer.
        Returned = 2,
    }
}

codes! {
    /// State of a checkout.
    CheckoutState {
        /// The checkout contains no purchasable item yet.
        Incomplete = 0,
        /// Waits for the owner's approval.
        Waiting = 1,
        /// The owner returned from the payment provider. The provider could not be queried yet.
        Ready = 2,
        /// The owner has agreed; the first payment is outstanding.
        Placing = 3,
        /// The owner has the plan.
        Completed = 4,
        /// Cancelled before completion.
        Canceled = 5,
    }
}

codes! {
    /// State of a mandate.
    MandateState {
        /// Stored here; receipt by the provider is unknown.
        Created = 0,
        /// The provider has the mandate; the buyer decides.
        Open = 1,
        /// The buyer has agreed, and nothing has been paid yet: money may move at any time.
        Agreed = 2,
        /// Paid at least once, and charged monthly.
        Active = 3,
        /// Cancellation requested, not confirmed yet; the paid period remains valid.
        CancelPending = 4,
        /// No further charges; the paid period remains valid.
        Ended = 5,
        /// A duplicate of another payment for the plan. The mandate is being cancelled, and every charge without a purchase is refunded.
        Duplicate = 6,
        /// No longer offered. The buyer may still approve the mandate at the provider.
        Dropped = 7,
        /// Finished; nothing was kept.
        Over = 8,
        /// Cancelled by the owner with the end of the paid period. Suspended at the provider until the end, and resumable until the end.
        CancelAtEnd = 9,
        /// Resumed by the owner; the provider has not confirmed the resumption yet.
        Resuming = 10,
    }
}

codes! {
    /// State of a signed transfer.
    AuthorizationState {
        /// Validated here; not submitted.
        Seen = 0,
        /// Submitted, or about to be.
        Settling = 1,
        /// Submitted; outcome unknown.
        Unknown = 2,
        /// The money has moved, and the purchase was granted.
        Settled = 3,
        /// The authorization can never move money any more, and has not.
        Dead = 4,
        /// Refused before submission; nothing moved.
        Refused = 5,
        /// Refused after submission: only the facilitator's response says that nothing moved.
        RefusedAfterSubmit = 6,
    }
}

codes! {
    /// The subject of a row of the change feed.
    ChangeKind {
        /// An account's status, class or cache scope.
        Account = 1,
        /// A credential created or revoked.
        Credential = 2,
        /// A grant revoked, or all grants of an account.
        Grant = 3,
        /// An account whose credit has become scarce, or plentiful again.
        Recall = 4,
        /// An account that has received credit.
        Credit = 5,
        /// A message that waits for delivery.
        Message = 6,
        /// All cached answers removed by an operator; the subject is unused.
        Cache = 7,
        /// The cached answers of a model removed; the subject is the beginning of the BLAKE3 digest of the model's id.
        CacheOfModel = 8,
        /// A cached answer removed; the subject is the answer's id.
        CacheEntry = 9,
    }
}

impl Endpoint {
    /// Whether the endpoint is an endpoint family, whose operations are completions.
    pub const fn is_family(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Completions)
    }

    /// The endpoints of stored numbers. For a table built at compile time, where an unknown number is an error.
    pub const fn table<const N: usize>(codes: [i64; N]) -> [Endpoint; N] {
        let mut table = [Endpoint::Chat; N];
        let mut at = 0;
        while at < N {
            table[at] = match Endpoint::from_code(codes[at]) {
                Some(endpoint) => endpoint,
                None => panic!("the number is no code of an endpoint"),
            };
            at += 1;
        }
        table
    }
}

impl Route {
    /// The route's name in responses, logs and references.
    pub const fn word(self) -> &'static str {
        match self {
            Route::X402 => "x402",
            Route::PayPal => "paypal",
        }
    }
}

impl EntryKind {
    /// The contra account of the kind.
    pub const fn contra(self) -> Contra {
        match self {
            EntryKind::Hold | EntryKind::Release | EntryKind::Carry => Contra::None,
            EntryKind::Settle | EntryKind::Charge | EntryKind::Refund => Contra::Revenue,
            EntryKind::TopUp => Contra::Outside,
            EntryKind::Grant => Contra::Granted,
            EntryKind::Expiry => Contra::Expiry,
            EntryKind::Correction => Contra::Correction,
            EntryKind::Allotment => Contra::Shared,
        }
    }

    /// The kind's name for people, and in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            EntryKind::Hold => "hold",
            EntryKind::Settle => "settle",
            EntryKind::Release => "release",
            EntryKind::Charge => "charge",
            EntryKind::TopUp => "top-up",
            EntryKind::Grant => "grant",
            EntryKind::Refund => "refund",
            EntryKind::Expiry => "expiry",
            EntryKind::Correction => "correction",
            EntryKind::Allotment => "allotment",
            EntryKind::Carry => "carry",
        }
    }

    /// 0 for an entry that opens an operation (or is the whole operation), 1 for an entry that resolves a hold.
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
    fn every_code_maps_back_to_its_variant() {
        for word in EntryKind::ALL {
            assert_eq!(EntryKind::from_code(word.code()), Some(*word));
        }
        for word in Contra::ALL {
            assert_eq!(Contra::from_code(word.code()), Some(*word));
        }
        assert_eq!(EntryKind::from_code(0), None, "0 is no kind of entry");
    }
}

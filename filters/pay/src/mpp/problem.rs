//! The kinds of problem that the scheme names.

/// Where the descriptions of the problems are.
const BASE: &str = "https://paymentauth.org/problems/";

macro_rules! slugs {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $title:literal, $status:literal;)*) => {
        /// A kind of problem with a payment.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Slug {
            $($(#[$doc])* $name,)*
        }

        impl Slug {
            /// The last segment of its type, and its `error.code`.
            pub fn word(self) -> &'static str {
                match self { $(Slug::$name => $word,)* }
            }

            /// Its title, which never varies.
            pub fn title(self) -> &'static str {
                match self { $(Slug::$name => $title,)* }
            }

            /// The status it is sent with.
            pub fn status(self) -> u16 {
                match self { $(Slug::$name => $status,)* }
            }
        }
    };
}

slugs! {
    /// Nothing was paid yet.
    PaymentRequired = "payment-required", "Payment Required", 402;
    /// Less was paid than asked for.
    PaymentInsufficient = "payment-insufficient", "Payment Insufficient", 402;
    /// The challenge has ended.
    PaymentExpired = "payment-expired", "Payment Expired", 402;
    /// The payment was looked at and is none.
    VerificationFailed = "verification-failed", "Verification Failed", 402;
    /// The credential cannot be read.
    MalformedCredential = "malformed-credential", "Malformed Credential", 402;
    /// The challenge is not one of ours, was made for somebody else, or was used.
    InvalidChallenge = "invalid-challenge", "Invalid Challenge", 402;
    /// What is shown is not what was asked for.
    InvalidPayload = "invalid-payload", "Invalid Payload", 402;
    /// The buyer has to do something first.
    PaymentActionRequired = "payment-action-required", "Payment Action Required", 402;
    /// Another method than the one offered.
    MethodUnsupported = "method-unsupported", "Method Unsupported", 400;
    /// The request itself is wrong.
    BadRequest = "bad-request", "Bad Request", 400;
    /// Our own fault.
    InternalPaymentError = "internal-payment-error", "Internal Payment Error", 500;
}

impl Slug {
    /// The `type` of the problem.
    pub fn uri(self) -> String {
        format!("{BASE}{}", self.word())
    }
}

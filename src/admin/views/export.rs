//! The export of an account's data, for the account's owner.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_filter::Scopes;
use tollgate_identity::list_keys;
use tollgate_money::AccountId;
use tollgate_store::{
    CheckoutRow, GrantRow, LedgerLine, MandateRow, PageCursor, PaymentRow, ReadError, Reader,
    RefusalRow, RequestsQuery, TopUpRow,
};

use super::{AccountView, Credits, KeyView, LineView, UsageView, lines_before};

/// Ledger entries per read.
const PAGE: usize = 1000;

/// Maximum number of rows of every remaining kind. No person reaches the maximum.
const ROWS_MAX: usize = 100_000;

/// All data of an account.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AccountExport {
    /// The account with its plan and addresses.
    pub(crate) account: AccountView,
    /// Its API keys, without their secrets.
    pub(crate) keys: Vec<KeyView>,
    /// The ledger entries that changed its balance, newest first, as far as the journal is kept.
    pub(crate) entries: Vec<ExportedEntry>,
    /// Whether there are older entries than these.
    pub(crate) has_more_entries: bool,
    /// Its usage by day and model.
    pub(crate) usage: Vec<UsageView>,
    /// Requests that were refused or failed.
    pub(crate) refused_requests: Vec<ExportedRefusal>,
    /// Purchases of credits.
    pub(crate) top_ups: Vec<ExportedTopUp>,
    /// Payments for the plan.
    pub(crate) payments: Vec<ExportedPayment>,
    /// Agreements to a monthly charge.
    pub(crate) mandates: Vec<ExportedMandate>,
    /// Checkouts of platforms.
    pub(crate) checkouts: Vec<ExportedCheckout>,
    /// Apps that have access.
    pub(crate) grants: Vec<ExportedGrant>,
    /// Where it is signed in.
    pub(crate) sessions: Vec<ExportedSession>,
}

impl AccountExport {
    /// Reads an account with at most `entries_max` ledger entries; `None` for an unknown account. Blocks.
    pub(crate) fn read(
        store: &Reader,
        id: AccountId,
        now: Timestamp,
        entries_max: usize,
    ) -> Result<Option<AccountExport>, ReadError> {
        let Some(row) = store.account(id)? else {
            return Ok(None);
        };
        let (plan, logins) = (store.subscription(id)?, store.logins(id)?);
        let (entries, has_more_entries) = entries(store, id, entries_max)?;
        let refused = RequestsQuery {
            account: id,
            from: Timestamp::MIN,
            to: Timestamp::MAX,
            model: None,
            credential: None,
            cursor: PageCursor::Newest,
            limit: ROWS_MAX,
        };
        let (refused, top_ups) = (
            store.refusals(&refused)?,
            store.top_ups_of(id, Timestamp::MAX, ROWS_MAX)?,
        );
        let usage = store.usage_totals(id, Timestamp::MIN, Timestamp::MAX)?;
        let keys = list_keys(store, id)?;
        let (payments, mandates) = (
            store.payments_of(id, ROWS_MAX)?,
            store.mandates_of(id, ROWS_MAX)?,
        );
        let (checkouts, grants) = (
            store.checkouts_of(id, ROWS_MAX)?,
            store.oauth_grants(id, now)?,
        );
        let sessions = store.sessions_of(id)?;
        Ok(Some(AccountExport {
            account: AccountView::of(&row, now).with(plan.as_ref(), &logins, now),
            keys: keys.iter().map(|key| KeyView::of(key, now)).collect(),
            entries,
            has_more_entries,
            usage: usage.iter().map(UsageView::of).collect(),
            refused_requests: refused.iter().map(ExportedRefusal::of).collect(),
            top_ups: top_ups.iter().map(ExportedTopUp::of).collect(),
            payments: payments.iter().map(ExportedPayment::of).collect(),
            mandates: mandates.iter().map(ExportedMandate::of).collect(),
            checkouts: checkouts.iter().map(ExportedCheckout::of).collect(),
            grants: grants.iter().map(ExportedGrant::of).collect(),
            sessions: sessions.into_iter().map(ExportedSession::of).collect(),
        }))
    }
}

/// The entries of an account, newest first, and whether older entries remain.
fn entries(
    store: &Reader,
    id: AccountId,
    max: usize,
) -> Result<(Vec<ExportedEntry>, bool), ReadError> {
    let (mut found, mut before) = (Vec::new(), Timestamp::MAX);
    while found.len() < max {
        let (lines, next) = lines_before(store, id, before, PAGE)?;
        found.extend(lines.iter().map(ExportedEntry::of));
        match next {
            Some(next) => before = next,
            None => return Ok((found, false)),
        }
    }
    Ok((found, true))
}

/// A ledger entry, and the tokens of its request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedEntry {
    #[serde(flatten)]
    line: LineView,
    /// Input tokens of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u64>,
    /// Its output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens: Option<u64>,
}

impl ExportedEntry {
    fn of(line: &LedgerLine) -> ExportedEntry {
        let usage = line.usage.as_ref().map(|row| &row.usage);
        ExportedEntry {
            line: LineView::of(line),
            prompt_tokens: usage.map(|usage| usage.prompt_tokens),
            completion_tokens: usage.map(|usage| usage.completion_tokens),
        }
    }
}

/// Requests that were refused or failed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedRefusal {
    /// When, RFC 3339; of several, the last.
    at: String,
    /// The status sent.
    status: u16,
    /// The error code sent.
    code: String,
    /// The model.
    model: Option<String>,
    /// The number of requests.
    requests: u64,
}

impl ExportedRefusal {
    fn of(row: &RefusalRow) -> ExportedRefusal {
        ExportedRefusal {
            at: row.at.rfc3339(),
            status: row.status,
            code: row.code.to_string(),
            model: row.model.as_deref().map(str::to_owned),
            requests: row.requests,
        }
    }
}

/// A purchase of credits.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedTopUp {
    id: String,
    state: String,
    /// US dollars.
    price: String,
    credits: Credits,
    /// The order at the provider.
    order: Option<String>,
    /// The payment there.
    payment: Option<String>,
    /// US dollars that were returned.
    returned: String,
    /// RFC 3339.
    created_at: String,
    /// RFC 3339.
    updated_at: String,
}

impl ExportedTopUp {
    fn of(row: &TopUpRow) -> ExportedTopUp {
        ExportedTopUp {
            id: row.id.to_string(),
            state: word(&row.state),
            price: row.price.to_string(),
            credits: row.credits.into(),
            order: row.order.as_deref().map(str::to_owned),
            payment: row.capture.as_deref().map(str::to_owned),
            returned: row.returned.to_string(),
            created_at: row.created_at.rfc3339(),
            updated_at: row.updated_at.rfc3339(),
        }
    }
}

/// A payment for the plan.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedPayment {
    id: String,
    /// How it was paid.
    route: &'static str,
    /// Its name there.
    reference: String,
    /// US dollars.
    amount: String,
    credits: Credits,
    status: String,
    /// RFC 3339.
    period_start: String,
    /// RFC 3339.
    period_end: String,
    /// RFC 3339.
    at: String,
}

impl ExportedPayment {
    fn of(row: &PaymentRow) -> ExportedPayment {
        ExportedPayment {
            id: row.id.to_string(),
            route: row.route.word(),
            reference: row.provider_ref.to_string(),
            amount: row.amount.to_string(),
            credits: row.credits.into(),
            status: word(&row.status),
            period_start: row.period_start.rfc3339(),
            period_end: row.period_end.rfc3339(),
            at: row.at.rfc3339(),
        }
    }
}

/// An agreement to a monthly charge.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedMandate {
    id: String,
    state: String,
    /// US dollars a month.
    price: String,
    /// The subscription at the provider.
    subscription: Option<String>,
    /// RFC 3339.
    agreed_at: Option<String>,
    /// RFC 3339.
    paid_until: Option<String>,
    /// RFC 3339.
    created_at: String,
}

impl ExportedMandate {
    fn of(row: &MandateRow) -> ExportedMandate {
        ExportedMandate {
            id: row.id.to_string(),
            state: word(&row.state),
            price: row.price.to_string(),
            subscription: row.provider_ref.as_deref().map(str::to_owned),
            agreed_at: row.agreed_at.map(Timestamp::rfc3339),
            paid_until: row.paid_until.map(Timestamp::rfc3339),
            created_at: row.created_at.rfc3339(),
        }
    }
}

/// A checkout of a platform.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedCheckout {
    id: String,
    state: String,
    /// The platform.
    platform: Option<String>,
    /// What the platform said of the buyer.
    buyer: Option<String>,
    /// RFC 3339.
    created_at: String,
}

impl ExportedCheckout {
    fn of(row: &CheckoutRow) -> ExportedCheckout {
        ExportedCheckout {
            id: row.id.to_string(),
            state: word(&row.state),
            platform: row.platform.as_deref().map(str::to_owned),
            buyer: row.buyer.as_deref().map(str::to_owned),
            created_at: row.created_at.rfc3339(),
        }
    }
}

/// An app that has access.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedGrant {
    id: String,
    /// The client id of the app.
    client: String,
    /// Its name.
    name: Option<String>,
    scopes: Vec<&'static str>,
    /// RFC 3339.
    created_at: String,
    /// RFC 3339.
    used_at: String,
}

impl ExportedGrant {
    fn of(row: &GrantRow) -> ExportedGrant {
        let scopes = Scopes::from_bits(row.scopes);
        ExportedGrant {
            id: row.id.to_string(),
            client: row.client.to_string(),
            name: row.client_name.as_deref().map(str::to_owned),
            scopes: scopes.iter().map(|scope| scope.name()).collect(),
            created_at: row.created_at.rfc3339(),
            used_at: row.used_at.rfc3339(),
        }
    }
}

/// A browser that is signed in.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportedSession {
    /// RFC 3339.
    started_at: String,
    /// RFC 3339.
    seen_at: String,
    /// RFC 3339.
    expires_at: String,
}

impl ExportedSession {
    fn of((started_at, seen_at, expires_at): (Timestamp, Timestamp, Timestamp)) -> ExportedSession {
        ExportedSession {
            started_at: started_at.rfc3339(),
            seen_at: seen_at.rfc3339(),
            expires_at: expires_at.rfc3339(),
        }
    }
}

/// The name of a state.
fn word(state: &impl std::fmt::Debug) -> String {
    let mut word = String::new();
    for letter in format!("{state:?}").chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

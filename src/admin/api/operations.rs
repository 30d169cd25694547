//! What each endpoint does.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use tollgate_clock::Timestamp;
use tollgate_filter::{ApiError, ErrorCode};
use tollgate_identity::{Login, find_key, list_keys};
use tollgate_ledger::audit;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{
    AccountRow, AuditLogQuery, AuditPosition, LedgerLine, OpenError, ReadError, Reader, reading,
};

use super::endpoint::{Endpoint, Operation};
use super::messages::{
    AccountPage, AuditLogPage, BalancePage, Booked, CacheScopeRequest, ClassRequest,
    ClosePaymentRequest, Closed, CreateAccountRequest, CreateKeyRequest, CreatedKey, CreditsKind,
    CreditsRequest, Differences, FindKeyRequest, Findings, FoundKey, KeyList, NodeList,
    PaymentList, PaymentOutcomeWord, PlanEnded, Providers, Purged, Retained, RevokedKey,
    StatusRequest, StatusWord, UsageList,
};
use super::{Api, Call, UNKNOWN, invalid, json};
use crate::admin::changes::{ChangeError, panicked};
use crate::admin::control::{Applied, Change};
use crate::admin::views::{
    AccountExport, AccountView, AuditRecordView, AuditReportView, BalanceView, KeyView, NodeView,
    PaymentView, UsageView, day as day_of, open_payments, read_day,
};
use crate::config;
use crate::database::{self, Opener};
use crate::doctor;

/// Elements of a page by default, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// Ledger entries of an export.
const ENTRIES_MAX: usize = 100_000;

/// The usage shown by default.
const USAGE: Duration = Duration::from_hours(30 * 24);

type Answer = Result<Response<Full<Bytes>>, ApiError>;

impl Api {
    /// Does what an endpoint does, for a request that may.
    pub(super) async fn operate(&self, endpoint: &Endpoint, call: Call<'_>) -> Answer {
        use Operation as Op;
        let answer = |value| Ok(json(endpoint.status, &value));
        match endpoint.operation {
            Op::ListAccounts => self.list_accounts(&call).await,
            Op::CreateAccount => {
                let new: CreateAccountRequest = call.message()?;
                let change = Change::AccountCreate {
                    emails: new.emails,
                    phones: new.phones,
                    class: new.class,
                    cache_scope: new.cache_scope,
                };
                match self.apply(change, &call).await? {
                    Applied::Account { id } => self.account(endpoint, &id).await,
                    _ => Err(unexpected()),
                }
            }
            Op::ShowAccount => self.account(endpoint, call.name()).await,
            Op::SetStatus => {
                let wanted: StatusRequest = call.message()?;
                let change = Change::AccountSuspend {
                    account: call.name().to_owned(),
                    suspended: wanted.status == StatusWord::Suspended,
                };
                self.change_account(endpoint, change, &call).await
            }
            Op::SetClass => {
                let wanted: ClassRequest = call.message()?;
                let change = Change::AccountClass {
                    account: call.name().to_owned(),
                    class: wanted.class,
                };
                self.change_account(endpoint, change, &call).await
            }
            Op::SetCacheScope => {
                let wanted: CacheScopeRequest = call.message()?;
                let change = Change::AccountCacheScope {
                    account: call.name().to_owned(),
                    scope: wanted.cache_scope,
                };
                self.change_account(endpoint, change, &call).await
            }
            Op::ExportAccount => {
                let (id, now) = (self.find(call.name()).await?.id, self.deps.clock.now());
                // Recorded before it is read: no export is without a record.
                let account = id.to_string();
                self.apply(Change::AccountExport { account }, &call).await?;
                let read = move |store: &Reader| AccountExport::read(store, id, now, ENTRIES_MAX);
                let exported = self.read(read).await?;
                let none = || no_account(format!("There is no account `{id}`."));
                Ok(json(endpoint.status, &exported.ok_or_else(none)?))
            }
            Op::DeleteAccount => {
                let change = Change::AccountDelete {
                    account: call.name().to_owned(),
                    forfeit: call.parameter("forfeit") == Some("true"),
                };
                self.change_account(endpoint, change, &call).await
            }
            Op::EndPlan => {
                let account = self.find(call.name()).await?.id.to_string();
                let change = Change::AccountEndPlan {
                    account: account.clone(),
                };
                self.apply(change, &call).await?;
                let plan = "ended";
                Ok(json(endpoint.status, &PlanEnded { account, plan }))
            }
            Op::ListKeys => {
                let (id, now) = (self.find(call.name()).await?.id, self.deps.clock.now());
                let keys = self.read(move |store| list_keys(store, id)).await?;
                let data = keys.iter().map(|key| KeyView::of(key, now)).collect();
                Ok(json(endpoint.status, &KeyList { data }))
            }
            Op::CreateKey => self.create_key(endpoint, &call).await,
            Op::FindKey => {
                let (FindKeyRequest { secret }, now) = (call.message()?, self.deps.clock.now());
                let found = self
                    .read(move |store| find_key(store, secret.trim()))
                    .await?;
                let Some((account, key)) = found else {
                    let message = "No API key has this secret.";
                    return Err(ApiError::new(ErrorCode::OfFilter(&UNKNOWN), message));
                };
                let (account, key) = (account.to_string(), KeyView::of(&key, now));
                Ok(json(endpoint.status, &FoundKey { account, key }))
            }
            Op::RevokeKey => {
                let id = call.name().to_owned();
                let change = Change::KeyRevoke { key: id.clone() };
                self.apply(change, &call).await?;
                let status = "revoked";
                Ok(json(endpoint.status, &RevokedKey { id, status }))
            }
            Op::ShowCredits => self.credits(endpoint, &call).await,
            Op::BookCredits => self.book(endpoint, &call).await,
            Op::ShowUsage => self.usage(endpoint, &call).await,
            Op::ListPayments => {
                let now = self.deps.clock.now();
                let open = self.read(open_payments).await?;
                let data = open.iter().map(|row| PaymentView::of(row, now)).collect();
                Ok(json(endpoint.status, &PaymentList { data }))
            }
            Op::ClosePayment => self.close_payment(endpoint, &call).await,
            Op::ShowProviders => match self.apply(Change::ProvidersShow {}, &call).await? {
                Applied::Providers { providers: data } => {
                    Ok(json(endpoint.status, &Providers { data }))
                }
                _ => Err(unexpected()),
            },
            Op::ShowCache => match self.apply(Change::CacheShow {}, &call).await? {
                Applied::Cache(state) => Ok(json(endpoint.status, &state)),
                _ => Err(unexpected()),
            },
            Op::PurgeCache => {
                let (id, model) = (call.parameter("id"), call.parameter("model"));
                let is_all = call.parameter("all") == Some("true");
                if [id.is_some(), model.is_some(), is_all]
                    .iter()
                    .filter(|one| **one)
                    .count()
                    != 1
                {
                    return Err(invalid("Name one of `id`, `model` and `all=true`."));
                }
                let change = Change::CachePurge {
                    id: id.map(str::to_owned),
                    model: model.map(str::to_owned),
                };
                match self.apply(change, &call).await? {
                    Applied::Purged { removed } => answer(Purged { removed }),
                    _ => Err(unexpected()),
                }
            }
            Op::SettingsDifferences => match self.apply(Change::SettingsDiff {}, &call).await? {
                Applied::Differences { differences: data } => {
                    Ok(json(endpoint.status, &Differences { data }))
                }
                _ => Err(unexpected()),
            },
            Op::ReloadSettings => match self.apply(Change::SettingsReload {}, &call).await? {
                Applied::Reloaded(settings) => Ok(json(endpoint.status, &settings)),
                _ => Err(unexpected()),
            },
            Op::RunRetention => match self.apply(Change::RetentionRun {}, &call).await? {
                Applied::Retained {
                    exported,
                    is_elsewhere,
                } => {
                    let answer = Retained {
                        exported,
                        is_elsewhere,
                    };
                    Ok(json(endpoint.status, &answer))
                }
                _ => Err(unexpected()),
            },
            Op::ListNodes => self.nodes(endpoint).await,
            Op::RecoverNode => {
                let node = call.name().to_owned();
                self.apply(Change::NodeRecover { node }, &call).await?;
                self.nodes(endpoint).await
            }
            Op::RunAudit => self.audit(endpoint).await,
            Op::RunDoctor => self.doctor(endpoint).await,
            Op::ListAuditLog => self.audit_log(endpoint, &call).await,
        }
    }

    async fn apply(&self, change: Change, call: &Call<'_>) -> Result<Applied, ApiError> {
        Ok(self.service.apply(change, call.caller.clone()).await?)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let read = reading(&self.deps.store, read).await;
        Ok(read.map_err(ChangeError::from)?)
    }

    /// The account of an id.
    async fn find(&self, id: &str) -> Result<AccountRow, ApiError> {
        let id: AccountId = id.parse().map_err(ChangeError::from)?;
        let row = self.read(move |store| store.account(id)).await?;
        row.ok_or_else(|| no_account(format!("There is no account `{id}`.")))
    }

    /// The account of an id, as an answer.
    async fn account(&self, endpoint: &Endpoint, id: &str) -> Answer {
        let (row, now) = (self.find(id).await?, self.deps.clock.now());
        let id = row.id;
        let more = move |store: &Reader| Ok((store.subscription(id)?, store.logins(id)?));
        let (plan, logins) = self.read(more).await?;
        let account = AccountView::of(&row, now).with(plan.as_ref(), &logins, now);
        Ok(json(endpoint.status, &account))
    }

    async fn change_account(&self, endpoint: &Endpoint, change: Change, call: &Call<'_>) -> Answer {
        self.apply(change, call).await?;
        self.account(endpoint, call.name()).await
    }

    async fn list_accounts(&self, call: &Call<'_>) -> Answer {
        let limit = limit(call)?;
        let login = match (call.parameter("email"), call.parameter("phone")) {
            (None, None) => None,
            (Some(email), None) => Some(Login::email(email)),
            (None, Some(phone)) => Some(Login::phone(phone)),
            (Some(_), Some(_)) => return Err(invalid("Name `email` or `phone`, not both.")),
        };
        let login = login.transpose().map_err(ChangeError::from)?;
        let after: Option<AccountId> = match call.parameter("after") {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| cursor("after"))?),
        };
        let find = move |store: &Reader| match login {
            None => store.accounts_after(after, limit + 1),
            Some(login) => {
                let found = login.find(|address| store.account_by_login(login.kind(), address))?;
                Ok(found.into_iter().collect())
            }
        };
        let mut rows = self.read(find).await?;
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| has_more);
        let now = self.deps.clock.now();
        let page = AccountPage {
            next: last.map(|row| row.id.to_string()),
            data: rows.iter().map(|row| AccountView::of(row, now)).collect(),
        };
        Ok(json(http::StatusCode::OK, &page))
    }

    async fn create_key(&self, endpoint: &Endpoint, call: &Call<'_>) -> Answer {
        let new: CreateKeyRequest = call.message()?;
        let expires_at = new.expires_at.map(|text| {
            let message = "`expires_at` is not a time; write it like 2027-01-31T12:00:00Z.";
            Timestamp::from_rfc3339(&text).ok_or_else(|| invalid(message).param("expires_at"))
        });
        let account = call.name().to_owned();
        let change = Change::KeyCreate {
            account: account.clone(),
            name: new.name,
            scopes: new.scopes,
            models: new.models,
            spend_max: new.spend_max,
            spend_period: new.spend_period,
            expires_at: expires_at.transpose()?,
        };
        match self.apply(change, call).await? {
            Applied::Key { id, secret } => {
                let created = CreatedKey {
                    id,
                    secret: secret.0,
                    account,
                };
                Ok(json(endpoint.status, &created))
            }
            _ => Err(unexpected()),
        }
    }

    async fn credits(&self, endpoint: &Endpoint, call: &Call<'_>) -> Answer {
        let limit = limit(call)?;
        let before = match call.parameter("before") {
            None => Timestamp::MAX,
            Some(text) => Timestamp::from_micros(text.parse().map_err(|_| cursor("before"))?),
        };
        let row = self.find(call.name()).await?;
        let id = row.id;
        let read = move |store: &Reader| store.lines(id, before, limit + 1);
        let mut lines = self.read(read).await?;
        let next = cut_page(&mut lines, limit);
        let page = BalancePage {
            balance: BalanceView::of(&row, &lines),
            next: next.map(|at| at.as_micros().to_string()),
        };
        Ok(json(endpoint.status, &page))
    }

    async fn book(&self, endpoint: &Endpoint, call: &Call<'_>) -> Answer {
        let reference = call.idempotency_key()?;
        let wanted: CreditsRequest = call.message()?;
        let (account, amount) = (call.name().to_owned(), wanted.amount);
        let change = match wanted.kind {
            CreditsKind::Grant => Change::CreditsGrant {
                account,
                amount,
                reference,
            },
            CreditsKind::Correction => Change::CreditsCorrect {
                account,
                amount,
                reference,
            },
        };
        match self.apply(change, call).await? {
            Applied::Credits {
                operation,
                repeated,
                available,
            } => {
                let available: Micros = available.parse().map_err(ChangeError::from)?;
                let booked = Booked {
                    account: call.name().to_owned(),
                    operation,
                    repeated,
                    available: available.into(),
                };
                Ok(json(endpoint.status, &booked))
            }
            _ => Err(unexpected()),
        }
    }

    async fn usage(&self, endpoint: &Endpoint, call: &Call<'_>) -> Answer {
        let day = |name: &'static str| {
            let text = call.parameter(name)?;
            let message = format!("`{name}` is not a day; write it like 2026-01-31.");
            Some(read_day(text).ok_or_else(|| invalid(message).param(name)))
        };
        let (first, last) = (day("from").transpose()?, day("to").transpose()?);
        let now = self.deps.clock.now();
        let today = || read_day(&day_of(now)).map_or(now, |(_, end)| end);
        let to = last.map_or_else(today, |(_, end)| end);
        let from = first.map_or(to - USAGE, |(start, _)| start);
        let id = self.find(call.name()).await?.id;
        let totals = self
            .read(move |store| store.usage_totals(id, from, to))
            .await?;
        let data = totals.iter().map(UsageView::of).collect();
        Ok(json(endpoint.status, &UsageList { data }))
    }

    async fn close_payment(&self, endpoint: &Endpoint, call: &Call<'_>) -> Answer {
        let wanted: ClosePaymentRequest = call.message()?;
        let is_paid = wanted.outcome == PaymentOutcomeWord::Paid;
        if is_paid != wanted.transaction.is_some() {
            let message = "`transaction` belongs to the outcome `paid`, and only to that.";
            return Err(invalid(message).param("transaction"));
        }
        let payment = wanted.payment;
        let change = Change::PaymentClose {
            payment: payment.clone(),
            paid: wanted.transaction,
            shared_transaction: wanted.shared_transaction,
        };
        self.apply(change, call).await?;
        let status = "closed";
        Ok(json(endpoint.status, &Closed { payment, status }))
    }

    async fn nodes(&self, endpoint: &Endpoint) -> Answer {
        let nodes = self.open(database::nodes);
        let data = NodeView::all(nodes.await?);
        Ok(json(endpoint.status, &NodeList { data }))
    }

    async fn audit(&self, endpoint: &Endpoint) -> Answer {
        let Ok(permit) = self.audits.clone().try_acquire_owned() else {
            return Err(ChangeError::conflict("an audit runs").into());
        };
        // A connection of its own: an audit may take minutes, and the store's are for requests.
        let read = self.open(database::open_read);
        let read = read.await?;
        let audit = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            audit::audit(&read)
        });
        let report = audit.await.map_err(panicked)?;
        let report = report.map_err(ChangeError::from)?;
        Ok(json(endpoint.status, &AuditReportView::of(&report)))
    }

    async fn doctor(&self, endpoint: &Endpoint) -> Answer {
        let Ok(permit) = self.doctors.clone().try_acquire_owned() else {
            return Err(ChangeError::conflict("the checks run already").into());
        };
        let (settings, clock) = (self.deps.settings.settings(), self.deps.clock.clone());
        let checks = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            doctor::check(Ok(settings), &clock)
        });
        let found = checks.await.map_err(panicked)?;
        let data = found.map_err(|error| {
            ChangeError::unavailable(format!("no thread can be started: {error}"))
        })?;
        Ok(json(endpoint.status, &Findings { data }))
    }

    /// Opens the database beside the store.
    async fn open<T: Send + 'static>(
        &self,
        open: impl FnOnce(&config::Store, &Opener<'_>) -> Result<T, OpenError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (settings, clock) = (self.deps.settings.settings(), self.deps.clock.clone());
        let entropy = self.deps.entropy.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let opener = Opener {
                name: "admin API",
                clock: &clock,
                entropy: &entropy,
            };
            open(&settings.store, &opener)
        });
        let opened = opened.await.map_err(panicked)?;
        Ok(opened.map_err(ChangeError::from)?)
    }

    async fn audit_log(&self, endpoint: &Endpoint, call: &Call<'_>) -> Answer {
        let limit = limit(call)?;
        let before = match call.parameter("before") {
            None => None,
            Some(text) => Some(position(text).ok_or_else(|| cursor("before"))?),
        };
        let wanted = AuditLogQuery {
            before,
            actor: call.parameter("actor").map(Into::into),
            subject: call.parameter("subject").map(Into::into),
            limit: limit + 1,
        };
        let mut records = self.read(move |store| store.audit_log(&wanted)).await?;
        let has_more = records.len() > limit;
        records.truncate(limit);
        let last = records.last().filter(|_| has_more);
        let page = AuditLogPage {
            next: last.map(|record| {
                let AuditPosition { at, node, number } = record.position();
                format!("{}.{node}.{number}", at.as_micros())
            }),
            data: records.iter().map(AuditRecordView::of).collect(),
        };
        Ok(json(endpoint.status, &page))
    }
}

/// Leaves a page of entries that ends between two times, and returns the time that the next page ends before. The store selects by time
/// alone, so entries of one time are never divided between two pages.
fn cut_page(lines: &mut Vec<LedgerLine>, limit: usize) -> Option<Timestamp> {
    let beyond = lines.get(limit)?.entry.at;
    lines.truncate(limit);
    let end = lines.iter().rposition(|line| line.entry.at != beyond);
    if let Some(end) = end {
        lines.truncate(end + 1);
    }
    lines.last().map(|line| line.entry.at)
}

fn limit(call: &Call<'_>) -> Result<usize, ApiError> {
    let Some(text) = call.parameter("limit") else {
        return Ok(LIMIT);
    };
    let limit = text.parse().ok();
    let limit = limit.filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| invalid(format!("`limit` is 1 to {LIMIT_MAX}.")).param("limit"))
}

fn position(text: &str) -> Option<AuditPosition> {
    let mut numbers = text.splitn(3, '.').map(|number| number.parse().ok());
    Some(AuditPosition {
        at: Timestamp::from_micros(numbers.next()??),
        node: numbers.next()??,
        number: numbers.next()??,
    })
}

fn cursor(name: &'static str) -> ApiError {
    invalid(format!("`{name}` is not the `next` of a page.")).param(name)
}

fn no_account(message: String) -> ApiError {
    ApiError::new(ErrorCode::OfFilter(&UNKNOWN), message)
}

/// The service has answered something else than the change has as its result, which no version does.
fn unexpected() -> ApiError {
    ApiError::new(
        ErrorCode::InternalError,
        "The change was made; its result was lost.",
    )
}

//! The filter `meter`: two-phase charging, with a hold before the upstream call and a settlement after the call.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::HeaderName;
use tollgate_clock::Clock;
use tollgate_filter::{
    AnswerProgress, AnswerUsage, BeforeCharge, Body, CacheStatus, Charge, Contract, Ending,
    Estimated, Exchange, FailureMode, Filter, FilterError, Forward, Model, Outcome, Phase,
    Principal, Step, Tail, Tokens, Unpaid,
};
use tollgate_ledger::{
    AttachedPart, Balance, CapHold, CapReached, Hold, Ledger, Settle, Settled, Settlement,
};
use tollgate_module::Snapshot;
use tollgate_money::Micros;
use tollgate_openai::{CompletionRequest, Family};
use tollgate_store::{Endpoint, UsageFlags, UsageRecord};

use crate::MeterSettings;
use crate::abandoned::{self, Abandoned};
use crate::bill::{self, Bill, Source};
use crate::counters::{MeterCounters, MeterEvent};
use crate::error::{
    MeterError, account_load_failed, cap_reached, hold_failed, insufficient, load_failed,
    settle_failed, too_much_abandoned,
};
use crate::estimate::{Counter, Texts};
use crate::quote::Quote;

/// The field that names a request whose answer may be recorded.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The endpoint of usage rows, for each family.
const ENDPOINTS: [Endpoint; Family::ALL.len()] = Endpoint::table(Family::STORED);

/// Holds the worst case before the upstream is called, and settles the usage when the answer is over.
pub struct Meter {
    pub(crate) settings: Snapshot<MeterSettings>,
    pub(crate) ledger: Ledger,
    pub(crate) clock: Clock,
    topup_url: Arc<str>,
    counter: Counter,
    pub(crate) counters: Arc<MeterCounters>,
    pub(crate) hit_price_ppm: u32,
    abandoned: Abandoned,
}

/// The quote of an exchange and the credit held for the exchange. Private to this filter; the drop with the exchange releases the hold.
pub(crate) struct QuoteHold {
    pub(crate) quote: Quote,
    /// Placed when the exchange goes upstream. An answer from the cache or from another filter has no hold.
    pub(crate) hold: Option<Hold>,
    /// The reservation against the credential's own cap.
    pub(crate) cap: Option<CapHold>,
}

/// Why no request can be paid for.
enum Unaffordable {
    /// The account has only this credit.
    NoCredit(Micros),
    /// The credential's own cap is reached.
    Cap(CapReached),
}

/// A finished answer, to be charged.
struct FinishedAnswer {
    hold: Hold,
    held: Box<QuoteHold>,
    succeeded: bool,
    /// Whether the answer was cut short.
    incomplete: bool,
}

/// A queued settlement and its report for other filters. Resolves when the settlement is durable: a client with the whole answer has been
/// charged for the answer.
///
/// A named struct: an `async fn` stores its arguments twice, and this future is boxed for each request.
struct PendingSettlement<'a> {
    meter: &'a Meter,
    exchange: &'a mut Exchange,
    settlement: Settlement,
    used: Used,
}

impl Future for PendingSettlement<'_> {
    type Output = Result<Outcome, FilterError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let settled = ready!(Pin::new(&mut this.settlement).poll(cx)).map_err(settle_failed)?;
        this.meter.report_charge(this.exchange, &this.used, settled);
        Poll::Ready(Ok(Outcome::Continue))
    }
}

/// The usage to settle.
pub(crate) struct Used {
    pub(crate) tokens: Tokens,
    pub(crate) estimated: bool,
    pub(crate) succeeded: bool,
    pub(crate) flags: UsageFlags,
    /// The whole answer is known, whether or not the client is still connected.
    pub(crate) whole: bool,
}

impl Meter {
    /// A meter over a ledger. `topup_url` is the page for adding credits, for refusals.
    pub fn new(
        settings: impl Into<Snapshot<MeterSettings>>,
        ledger: Ledger,
        clock: Clock,
        topup_url: &str,
    ) -> Meter {
        let settings = settings.into();
        let count_parallel = settings.load().count_parallel;
        Meter {
            counter: Counter::new(count_parallel),
            settings,
            ledger,
            clock,
            topup_url: topup_url.into(),
            counters: Arc::default(),
            hit_price_ppm: 0,
            abandoned: Abandoned::default(),
        }
    }

    /// Charges answers from a cache at this many millionths of their price. Default: free.
    #[must_use]
    pub fn hit_price_ppm(mut self, ppm: u32) -> Meter {
        self.hit_price_ppm = ppm;
        self
    }

    /// The counters of this meter, for the metrics.
    pub fn counters(&self) -> Arc<MeterCounters> {
        Arc::clone(&self.counters)
    }

    /// Admission control before the body is read. A repeat of a request with an idempotency key may be answered from the record. The
    /// refusal of the repeat is left to the idempotency filter.
    fn admit_head(&self, exchange: &mut Exchange) -> Result<Outcome, MeterError> {
        let refusal = match self.affordable(exchange)?.1 {
            None => return self.admit_after_abandoned(exchange),
            Some(Unaffordable::NoCredit(available)) => {
                insufficient(None, available, &self.topup_url)
            }
            Some(Unaffordable::Cap(reached)) => cap_reached(None, reached),
        };
        if exchange.request.headers.contains_key(IDEMPOTENCY_KEY) {
            exchange.put(Unpaid(refusal));
            return Ok(Outcome::Continue);
        }
        self.counters.events.inc(MeterEvent::Refused);
        Ok(Outcome::refuse(refusal))
    }

    /// Admission control after the load of the values for the decisions on a request. The values stay in memory for longer than any request
    /// waits before its hold.
    async fn load(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let now = exchange.now(&self.clock);
        let Principal {
            account,
            credential,
            spending_cap,
            ..
        } = *principal(exchange)?;
        if let Err(error) = self.ledger.load(account).await {
            return account_load_failed(error);
        }
        self.ledger.balance(account).ok_or(MeterError::NoAccount)?;
        if let Some(cap) = spending_cap {
            let of = (credential, account);
            let loaded = self.ledger.load_spending(of, cap, now).await;
            loaded.map_err(load_failed)?;
        }
        exchange.invalidate_now();
        Ok(self.admit_head(exchange)?)
    }

    /// Refuses an account whose clients have left too much of the providers' work unpaid.
    fn admit_after_abandoned(&self, exchange: &mut Exchange) -> Result<Outcome, MeterError> {
        let account = principal(exchange)?.account;
        let Some(tokens_max) = self.settings.load().abandoned_tokens_max else {
            return Ok(Outcome::Continue);
        };
        let now = exchange.elapsed(&self.clock);
        let Some(wait) = self.abandoned.wait(account, tokens_max, now) else {
            return Ok(Outcome::Continue);
        };
        self.counters.events.inc(MeterEvent::AbandonedLimit);
        Ok(Outcome::refuse(too_much_abandoned(wait)))
    }

    /// Counts the provider's work for a client that disconnected before any output. The work is not charged.
    fn note_abandoned(&self, exchange: &mut Exchange, quote: &Quote) {
        // The calls of a translated request are counted at their end.
        let is_translated = |forward: &Forward| forward.api != forward.asked;
        let is_called = exchange.record.upstream_calls > 0
            || exchange.get::<Forward>().is_some_and(is_translated);
        let Some(started) = exchange.record.upstream_started.filter(|_| is_called) else {
            return;
        };
        let (Ok(principal), Some(tokens_max)) = (
            principal(exchange),
            self.settings.load().abandoned_tokens_max,
        ) else {
            return;
        };
        let account = principal.account;
        let now = exchange.elapsed(&self.clock);
        let tokens = abandoned::work(quote.sizes.input, now.saturating_sub(started));
        self.abandoned.add(account, tokens, tokens_max, now);
    }

    /// Tokens of abandoned work so far.
    pub(crate) fn abandoned_tokens(&self) -> u64 {
        self.abandoned.tokens()
    }

    /// The account's balance, and the reason why the account or its credential cannot pay for any request.
    fn affordable(
        &self,
        exchange: &mut Exchange,
    ) -> Result<(Balance, Option<Unaffordable>), MeterError> {
        let Principal {
            account,
            credential,
            spending_cap,
            ..
        } = *principal(exchange)?;
        let balance = self.ledger.balance(account).ok_or(MeterError::NotLoaded)?;
        let funds = balance.total().saturating_add(balance.credit_limit);
        if !funds.is_positive()
            && self
                .ledger
                .knows_balance(account, exchange.now(&self.clock))
        {
            let no_credit = Unaffordable::NoCredit(balance.spendable());
            return Ok((balance, Some(no_credit)));
        }
        let Some(cap) = spending_cap else {
            return Ok((balance, None));
        };
        let now = exchange.now(&self.clock);
        let reached = self.ledger.reached_cap(credential, cap, now);
        let reached = reached.map_err(|_| MeterError::NotLoaded)?;
        Ok((balance, reached.map(Unaffordable::Cap)))
    }

    /// Admission control: computes the worst case, and refuses an account without credit.
    fn admit(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        // Again, since the body may have taken long to arrive.
        let (balance, unaffordable) = self.affordable(exchange)?;
        // Dense text has a token for each byte. The cost beyond the hold and the balance is lost, and a new account that has never paid can
        // be created for each request.
        let bytes_per_token = match balance.has_paid {
            true => self.settings.load().bytes_per_token,
            false => NonZeroU64::MIN,
        };
        let request = exchange
            .get::<CompletionRequest>()
            .ok_or(MeterError::Missing { what: "request" })?;
        let forward = exchange
            .get::<Forward>()
            .ok_or(MeterError::Missing { what: "forward" })?;
        let quote = Quote::new(request, &forward.model, bytes_per_token);
        match unaffordable {
            None => {}
            Some(Unaffordable::NoCredit(available)) => return Ok(self.refuse(&quote, available)),
            Some(Unaffordable::Cap(reached)) => return Ok(self.refuse_cap(&quote, reached)),
        }
        if let Some(forward) = exchange.get_mut::<Forward>() {
            forward.tokens_max = quote.sizes.tokens();
            forward.quote = Some(quote.amount);
        }
        exchange.put(QuoteHold {
            quote,
            hold: None,
            cap: None,
        });
        Ok(Outcome::Continue)
    }

    #[cold]
    pub(crate) fn refuse_cap(&self, quote: &Quote, reached: CapReached) -> Outcome {
        self.counters.events.inc(MeterEvent::Refused);
        let floor = self.settings.load().clamp_tokens_min.map(NonZeroU64::get);
        Outcome::refuse(cap_reached(Some(quote.least(floor)), reached))
    }

    pub(crate) fn refuse(&self, quote: &Quote, available: Micros) -> Outcome {
        self.counters.events.inc(MeterEvent::Refused);
        let required = quote.least(self.settings.load().clamp_tokens_min.map(NonZeroU64::get));
        Outcome::refuse(insufficient(Some(required), available, &self.topup_url))
    }

    /// Ends the hold of a finished answer.
    fn end<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        mut held: Box<QuoteHold>,
        ending: Ending,
    ) -> Step<'a, Outcome> {
        let Some(hold) = held.hold.take() else {
            return Step::now(Outcome::Continue);
        };
        let usage = exchange.take::<AnswerUsage>().unwrap_or_default();
        let (tokens, over) = match Bill::of(ending, &usage) {
            Bill::Release => {
                if ending == Ending::GoneDuring {
                    self.note_abandoned(exchange, &held.quote);
                }
                hold.release(exchange.now(&self.clock));
                return Step::now(Outcome::Continue);
            }
            Bill::Settle {
                tokens,
                succeeded,
                incomplete,
            } => (
                tokens,
                FinishedAnswer {
                    hold,
                    held,
                    succeeded,
                    incomplete,
                },
            ),
        };
        match tokens {
            Source::Reported(tokens) => self.settle_covered(exchange, over, tokens, false),
            Source::Counted => Step::later(async move {
                let model = &over.held.quote.model;
                let tokens = self.count(exchange, model, usage).await?;
                exchange.invalidate_now();
                let settled = self.settle_covered(exchange, over, tokens, true);
                settled.finish().await
            }),
        }
    }

    /// Settles. Where this node has too little credit for the cost above the hold, the node takes credit first.
    fn settle_covered<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        mut over: FinishedAnswer,
        tokens: Tokens,
        estimated: bool,
    ) -> Step<'a, Outcome> {
        let (quote, succeeded) = (&over.held.quote, over.succeeded);
        let actual = || {
            let bounded = quote.sizes.bounded(tokens);
            let price = bill::price(&quote.model.price, succeeded);
            price.charge(bounded.prompt, bounded.completion)
        };
        if over.hold.is_short_of(actual) {
            let actual = actual();
            return Step::later(async move {
                let at = exchange.now(&self.clock);
                over.hold.cover(actual, at).await;
                exchange.invalidate_now();
                self.settle(exchange, over, tokens, estimated)?.await
            });
        }
        // Decided before the future is created: the future is boxed, and as large as its state.
        match self.settle(exchange, over, tokens, estimated) {
            Ok(settling) => Step::later(settling),
            Err(error) => Step::failed(error),
        }
    }

    /// Computes the charge and queues its settlement.
    fn settle<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        over: FinishedAnswer,
        tokens: Tokens,
        estimated: bool,
    ) -> Result<PendingSettlement<'a>, FilterError> {
        let FinishedAnswer {
            hold,
            mut held,
            succeeded,
            incomplete,
        } = over;
        let quote = &held.quote;
        let finished = |progress: &AnswerProgress| progress.finished;
        let whole = !incomplete || exchange.get().is_some_and(finished);
        let mut flags = UsageFlags::NONE;
        for (flag, set) in [
            (UsageFlags::ESTIMATED, estimated),
            (UsageFlags::STREAMED, exchange.record.stream),
            (UsageFlags::INCOMPLETE, incomplete),
            (UsageFlags::CUT_UPSTREAM, incomplete && !succeeded),
        ] {
            if set {
                flags |= flag;
            }
        }
        let used = Used {
            tokens: self.bounded(exchange, quote, tokens),
            estimated,
            succeeded,
            flags,
            whole,
        };
        let attached = if used.whole {
            attached_part(exchange, &used)
        } else {
            None
        };
        let price = bill::price(&quote.model.price, used.succeeded);
        let at = exchange.now(&self.clock);
        let settle = Settle {
            actual: price.charge(used.tokens.prompt, used.tokens.completion),
            usage: self.usage_record(exchange, &quote.model, &used)?,
            at,
        };
        let credential = principal(exchange)?.credential;
        let mut settlement = hold.settle_with(settle, attached);
        let cap = held.cap.take();
        self.ledger.count(&mut settlement, credential, cap, at);
        Ok(PendingSettlement {
            meter: self,
            exchange,
            settlement,
            used,
        })
    }

    /// Publishes the charge on the exchange.
    pub(crate) fn report_charge(&self, exchange: &mut Exchange, used: &Used, settled: Settled) {
        self.counters.written_off(settled.written_off);
        let record = &mut exchange.record;
        record.prompt_tokens = used.tokens.prompt;
        record.completion_tokens = used.tokens.completion;
        record.estimated = used.estimated;
        record.charged = settled.charged;
        exchange.put(Charge {
            used: settled.charged,
            remaining: settled.available,
            tokens: used.tokens,
            estimated: used.estimated,
        });
    }

    pub(crate) async fn count(
        &self,
        exchange: &Exchange,
        model: &Model,
        usage: AnswerUsage,
    ) -> Result<Tokens, FilterError> {
        let texts = Texts {
            request: exchange.request.body.clone(),
            answer: usage.text,
            media_bytes: usage.media_bytes,
            factor_ppm: model.token_factor_ppm,
        };
        self.counter.count(texts).await.map_err(uncounted)
    }

    /// The reported tokens, bounded by the most tokens that the request can have used. A higher report is logged with its provider.
    pub(crate) fn bounded(&self, exchange: &Exchange, quote: &Quote, claimed: Tokens) -> Tokens {
        let tokens = quote.sizes.bounded(claimed);
        if tokens != claimed {
            self.counters.events.inc(MeterEvent::Bounded);
            tracing::warn!(
                request_id = %exchange.request.id,
                provider = exchange.record.provider.as_deref(),
                model = &*quote.model.id,
                claimed_prompt_tokens = claimed.prompt,
                claimed_completion_tokens = claimed.completion,
                prompt_tokens = tokens.prompt,
                completion_tokens = tokens.completion,
                "bounded reported usage: more tokens than the request can have used"
            );
        }
        tokens
    }

    pub(crate) fn usage_record(
        &self,
        exchange: &mut Exchange,
        model: &Model,
        used: &Used,
    ) -> Result<UsageRecord, FilterError> {
        let now = exchange.elapsed(&self.clock);
        let request = exchange
            .get::<CompletionRequest>()
            .ok_or(MeterError::Missing { what: "request" })?;
        let record = &exchange.record;
        let since_start = |at: Duration| {
            let waited = at.saturating_sub(record.started);
            u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)
        };
        Ok(UsageRecord {
            credential: Some(principal(exchange)?.credential),
            endpoint: ENDPOINTS[request.family.place()],
            model: Arc::clone(&model.id),
            upstream: record.provider.clone(),
            prompt_tokens: used.tokens.prompt,
            completion_tokens: used.tokens.completion,
            flags: used.flags,
            // A charged answer is a 200, though a whole answer is not sent yet.
            http_status: 200,
            ttfb_us: record.first_byte.map(since_start),
            total_us: Some(since_start(now)),
        })
    }
}

impl Filter for Meter {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Head
                | Phase::Request
                | Phase::Forward
                | Phase::FirstByte
                | Phase::Tail
                | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_head<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        match self.admit_head(exchange) {
            Err(MeterError::NotLoaded) => Step::later(self.load(exchange)),
            admitted => Step::Now(admitted.map_err(FilterError::from)),
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        Step::Now(self.admit(exchange))
    }

    fn on_forward<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        self.hold(exchange)
    }

    fn before_first_byte<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let held = exchange.get_mut::<QuoteHold>();
        let Some(hold) = held.and_then(|held| held.hold.as_mut()) else {
            return Step::now(Outcome::Continue);
        };
        Step::later(async {
            match hold.durable().await {
                Ok(()) => Ok(Outcome::Continue),
                Err(error) => hold_failed(error),
            }
        })
    }

    fn before_tail<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        tail: &'a mut Tail,
    ) -> Step<'a, Outcome> {
        let Some(held) = exchange.take_boxed::<QuoteHold>() else {
            // No hold, and no charge due.
            return Step::now(Outcome::Continue);
        };
        match held.hold {
            Some(_) => self.end(exchange, held, tail.ending()),
            None if exchange.record.cache == Some(CacheStatus::Hit) => {
                self.hit(exchange, held.quote)
            }
            // A reply of another filter.
            None => Step::now(Outcome::Continue),
        }
    }

    fn on_end(&self, exchange: &mut Exchange, ending: Ending) {
        // An exchange that reached its tail has been settled at the tail. The remaining exchanges have no answer: refused, failed, or
        // abandoned.
        if let Some(held) = exchange.take_boxed::<QuoteHold>()
            && let Some(hold) = held.hold
        {
            if ending == Ending::GoneBefore {
                self.note_abandoned(exchange, &held.quote);
            }
            hold.release(exchange.now(&self.clock));
        }
    }
}

/// The part of another filter that is written in the unit of work of the charge for a whole answer.
pub(crate) fn attached_part(exchange: &mut Exchange, used: &Used) -> Option<AttachedPart> {
    let before_charge = exchange.take::<BeforeCharge>()?;
    before_charge.act(exchange, used.tokens, Estimated(used.estimated));
    exchange.take::<AttachedPart>()
}

pub(crate) fn principal(exchange: &Exchange) -> Result<&Principal, MeterError> {
    exchange
        .get::<Principal>()
        .ok_or(MeterError::Missing { what: "principal" })
}

fn uncounted(error: crate::estimate::CountError) -> FilterError {
    FilterError::new(crate::error::unmetered(), error)
}

//! The filter: credit held before the call, and taken after it.

use std::sync::Arc;
use std::time::Duration;

use tollgate_filter::{
    AnswerProgress, AnswerUsage, BeforeCharge, Body, CacheStatus, Charge, Clamped, Clock, Contract,
    Ending, Estimated, Exchange, FailureMode, Filter, FilterError, Forward, Model, Outcome,
    OutputCap, Phase, Principal, SpendingCap, Step, Tail, Tokens,
};
use tollgate_ledger::{Beside, Hold, HoldError, HoldRequest, Ledger, Settle, Settled};
use tollgate_money::Micros;
use tollgate_openai::{CompletionRequest, Endpoint};
use tollgate_store::{CredentialId, UsageFlags, UsageRecord};

use crate::MeterSettings;
use crate::bill::{self, Bill, Source};
use crate::counters::Counters;
use crate::error::{MeterError, cap_reached, hold_failed, insufficient, settle_failed};
use crate::estimate::{Counter, Texts};
use crate::quote::Quote;
use crate::spending::{CapReached, Reserved, Spending};

/// Holds the worst case before the upstream is called, and takes what was used when the answer is over.
pub struct Meter {
    settings: MeterSettings,
    pub(crate) ledger: Ledger,
    pub(crate) clock: Clock,
    topup_url: Arc<str>,
    counter: Counter,
    pub(crate) counters: Arc<Counters>,
    pub(crate) hit_price_ppm: u32,
    pub(crate) spending: Arc<Spending>,
}

/// The credit promised to one exchange. Private to this filter; dropped with the exchange it is given back.
struct Held {
    hold: Hold,
    quote: Quote,
    /// What is kept of the credential's own cap.
    kept: Option<(SpendingCap, Reserved)>,
}

/// What was used, ready to be taken.
pub(crate) struct Used {
    pub(crate) tokens: Tokens,
    pub(crate) estimated: bool,
    pub(crate) succeeded: bool,
    pub(crate) flags: UsageFlags,
    /// All of the answer is known, whether or not the client is still there to have it.
    pub(crate) whole: bool,
}

impl Meter {
    /// A meter over one ledger. `topup_url` is where an account adds credits, for clients that have too few.
    pub fn new(settings: MeterSettings, ledger: Ledger, clock: Clock, topup_url: &str) -> Meter {
        Meter {
            counter: Counter::new(settings.count_parallel),
            settings,
            ledger,
            clock,
            topup_url: topup_url.into(),
            counters: Arc::default(),
            hit_price_ppm: 0,
            spending: Arc::default(),
        }
    }

    /// Charges answers from a cache at this many millionths of their price. By default they cost nothing.
    #[must_use]
    pub fn hit_price_ppm(mut self, ppm: u32) -> Meter {
        self.hit_price_ppm = ppm;
        self
    }

    /// Goes on counting what credentials with a cap have spent. By default they start with nothing.
    #[must_use]
    pub fn spending(mut self, spending: Spending) -> Meter {
        self.spending = Arc::new(spending);
        self
    }

    /// What this meter counts, for the metrics.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Works out the worst case, and refuses an account that has nothing.
    fn admit(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let account = principal(exchange)?.account;
        let request = exchange
            .get::<Arc<CompletionRequest>>()
            .ok_or(MeterError::Missing { what: "request" })?;
        let forward = exchange
            .get::<Forward>()
            .ok_or(MeterError::Missing { what: "forward" })?;
        let quote = Quote::new(request, &forward.model, self.settings.bytes_per_token);
        let balance = self.ledger.balance(account).ok_or(MeterError::NoAccount)?;
        if !balance
            .total()
            .saturating_add(balance.credit_limit)
            .is_positive()
        {
            return Ok(self.refuse(&quote, balance.room()));
        }
        let principal = principal(exchange)?;
        if let Some(cap) = principal.spending_cap
            && let Err(reached) =
                self.spending
                    .left(principal.credential, cap, self.clock.unix_micros())
        {
            return Ok(self.refuse_cap(&quote, reached));
        }
        if let Some(forward) = exchange.get_mut::<Forward>() {
            forward.tokens_max = quote.sizes.tokens();
        }
        exchange.put(quote);
        Ok(Outcome::Continue)
    }

    /// Promises the worst case in memory; for a stream also on the disk, which works while the upstream is called.
    fn hold(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let mut quote = exchange
            .take::<Quote>()
            .ok_or(MeterError::Missing { what: "quote" })?;
        let mut clamped = None;
        let mut kept = None;
        if let Some(cap) = principal(exchange)?.spending_cap {
            match self.keep(exchange, cap, &quote)? {
                Ok((reserved, smaller)) => {
                    kept = Some((cap, reserved));
                    clamped = smaller;
                }
                Err(reached) => return Ok(self.refuse_cap(&quote, reached)),
            }
        }
        let request = HoldRequest {
            operation: exchange.request.id,
            account: principal(exchange)?.account,
            amount: clamped.as_ref().unwrap_or(&quote).amount,
            price_version: Some(quote.model.price_version),
            at: self.clock.unix_micros(),
            // By the clock that nobody sets: a jump of the other must not take the credit of answers under way.
            expires_at: self
                .clock
                .steady_micros()
                .saturating_add(micros(self.settings.hold)),
        };
        // From the request as it came: that its key's cap has made it shorter does not keep it from being made shorter still.
        let less = |room| {
            let smaller = self.clamp(&quote, room)?;
            let amount = smaller.amount;
            clamped = Some(smaller);
            Some(amount)
        };
        // A whole answer shows nothing before it is settled: until then a promise in memory is enough, and its end is one row.
        let placed = if exchange.record.stream {
            self.ledger.hold_within(request, less)
        } else {
            self.ledger.reserve_within(request, less)
        };
        let hold = match placed {
            Ok(hold) => hold,
            Err(HoldError::InsufficientCredit { available, .. }) => {
                return Ok(self.refuse(&quote, available));
            }
            Err(error) => return hold_failed(error),
        };
        if let Some(clamped) = clamped {
            quote = clamped;
            let forward = exchange
                .get_mut::<Forward>()
                .ok_or(MeterError::Missing { what: "forward" })?;
            forward.body.cap_output(OutputCap {
                tokens: quote.sizes.output_each,
                member: quote.model.cap_member,
            });
            exchange.put(Clamped);
            self.counters.clamped();
        }
        exchange.put(Held { hold, quote, kept });
        Ok(Outcome::Continue)
    }

    /// Keeps the worst case free under the credential's own cap, or what is left of it where the request leaves its length to us.
    fn keep(
        &self,
        exchange: &Exchange,
        cap: SpendingCap,
        quote: &Quote,
    ) -> Result<Result<(Reserved, Option<Quote>), CapReached>, FilterError> {
        let credential = principal(exchange)?.credential;
        let now = self.clock.unix_micros();
        let reserve = |amount| self.spending.reserve(credential, cap, amount, now);
        Ok(match reserve(quote.amount) {
            Ok(reserved) => Ok((reserved, None)),
            Err(reached) => match self.clamp(quote, reached.room) {
                Some(smaller) => reserve(smaller.amount).map(|reserved| (reserved, Some(smaller))),
                None => Err(reached),
            },
        })
    }

    #[cold]
    fn refuse_cap(&self, quote: &Quote, reached: CapReached) -> Outcome {
        self.counters.refused();
        let floor = self
            .settings
            .clamp_tokens_min
            .map(std::num::NonZeroU64::get);
        Outcome::refuse(cap_reached(quote.least(floor), reached))
    }

    /// The quote for the longest answer that `available` pays for, where the request leaves its length to us.
    fn clamp(&self, quote: &Quote, available: Micros) -> Option<Quote> {
        let floor = self.settings.clamp_tokens_min?.get();
        quote.clamp(available, floor)
    }

    fn refuse(&self, quote: &Quote, available: Micros) -> Outcome {
        self.counters.refused();
        let required = quote.least(
            self.settings
                .clamp_tokens_min
                .map(std::num::NonZeroU64::get),
        );
        Outcome::refuse(insufficient(required, available, &self.topup_url))
    }

    /// Ends the hold of an answer that is over.
    async fn end(&self, exchange: &mut Exchange, ending: Ending) -> Result<Outcome, FilterError> {
        let Some(held) = exchange.take::<Held>() else {
            // A reply of another filter: nothing was held, and nothing is due.
            return Ok(Outcome::Continue);
        };
        let usage = exchange.take::<AnswerUsage>().unwrap_or_default();
        let (tokens, succeeded, incomplete) = match Bill::of(ending, &usage) {
            Bill::Release => {
                held.hold.release(self.clock.unix_micros());
                return Ok(Outcome::Continue);
            }
            Bill::Settle {
                tokens,
                succeeded,
                incomplete,
            } => (tokens, succeeded, incomplete),
        };
        let (tokens, estimated) = match tokens {
            Source::Reported(tokens) => (tokens, false),
            Source::Counted => (self.count(exchange, &held.quote.model, usage).await?, true),
        };
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
            tokens: self.bounded(exchange, &held.quote, tokens),
            estimated,
            succeeded,
            flags,
            whole,
        };
        self.settle(exchange, held, used).await
    }

    async fn settle(
        &self,
        exchange: &mut Exchange,
        held: Held,
        used: Used,
    ) -> Result<Outcome, FilterError> {
        let Held { hold, quote, kept } = held;
        let beside = if used.whole {
            beside(exchange, &used)
        } else {
            None
        };
        let price = bill::price(&quote.model.price, used.succeeded);
        let at = self.clock.unix_micros();
        let settle = Settle {
            actual: price.charge(used.tokens.prompt, used.tokens.completion),
            usage: self.usage_record(exchange, &quote.model, &used)?,
            at,
        };
        let settlement = hold.settle_with(settle, beside);
        // The last byte waits for the disk: who has the whole answer has been charged for it.
        let settled = settlement.await.map_err(settle_failed)?;
        if let Some((cap, reserved)) = kept {
            reserved.settle(cap, settled.charged, at);
        }
        self.tell(exchange, &used, settled);
        Ok(Outcome::Continue)
    }

    /// Leaves for others what was taken.
    pub(crate) fn tell(&self, exchange: &mut Exchange, used: &Used, settled: Settled) {
        self.counters.written_off(settled.written_off.get());
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
        self.counters.estimated();
        let texts = Texts {
            request: exchange.request.body.clone(),
            answer: usage.text,
            media_bytes: usage.media_bytes,
            factor_ppm: model.token_factor_ppm,
        };
        self.counter.count(texts).await.map_err(uncounted)
    }

    /// Tokens held to what the request can have used; a provider that claims more is named in the log.
    pub(crate) fn bounded(&self, exchange: &Exchange, quote: &Quote, claimed: Tokens) -> Tokens {
        let tokens = quote.sizes.bounded(claimed);
        if tokens != claimed {
            self.counters.bounded();
            tracing::warn!(
                request_id = %exchange.request.id,
                provider = exchange.record.provider.as_deref(),
                model = &*quote.model.id,
                claimed_prompt_tokens = claimed.prompt,
                claimed_completion_tokens = claimed.completion,
                prompt_tokens = tokens.prompt,
                completion_tokens = tokens.completion,
                "more tokens were claimed than the request can have used; the rest is not charged"
            );
        }
        tokens
    }

    pub(crate) fn usage_record(
        &self,
        exchange: &Exchange,
        model: &Model,
        used: &Used,
    ) -> Result<UsageRecord, FilterError> {
        let request = exchange
            .get::<Arc<CompletionRequest>>()
            .ok_or(MeterError::Missing { what: "request" })?;
        let record = &exchange.record;
        let since_start = |at: Duration| {
            let waited = at.saturating_sub(record.started);
            u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)
        };
        Ok(UsageRecord {
            credential: Some(CredentialId::from_bytes(principal(exchange)?.credential.0)),
            endpoint: match request.endpoint {
                Endpoint::Chat => tollgate_store::Endpoint::Chat,
                Endpoint::Text => tollgate_store::Endpoint::Completions,
            },
            model: Arc::clone(&model.id),
            upstream: record.provider.clone(),
            prompt_tokens: used.tokens.prompt,
            completion_tokens: used.tokens.completion,
            flags: used.flags,
            // An answer that is charged for is a 200, though a whole one is not sent yet.
            http_status: 200,
            ttfb_us: record.first_byte.map(since_start),
            total_us: Some(since_start(self.clock.elapsed())),
        })
    }
}

impl Filter for Meter {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::Forward | Phase::FirstByte | Phase::Tail | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        Step::Now(self.admit(exchange))
    }

    fn on_forward<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        Step::Now(self.hold(exchange))
    }

    fn before_first_byte<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let Some(held) = exchange.get_mut::<Held>() else {
            return Step::now(Outcome::Continue);
        };
        Step::later(async {
            match held.hold.durable().await {
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
        if exchange.record.cache == Some(CacheStatus::Hit)
            && let Some(quote) = exchange.take::<Quote>()
        {
            return self.hit(exchange, quote);
        }
        Step::later(self.end(exchange, tail.ending()))
    }

    fn on_end(&self, exchange: &mut Exchange, _: Ending) {
        // Whatever came to its tail has been resolved there. What is left gave no answer: refused, failed, or left alone.
        if let Some(held) = exchange.take::<Held>() {
            held.hold.release(self.clock.unix_micros());
        }
    }
}

/// What another filter wants durable together with the charge for a whole answer.
pub(crate) fn beside(exchange: &mut Exchange, used: &Used) -> Option<Beside> {
    let before_charge = exchange.take::<BeforeCharge>()?;
    before_charge.act(exchange, used.tokens, Estimated(used.estimated));
    exchange.take::<Beside>()
}

pub(crate) fn principal(exchange: &Exchange) -> Result<&Principal, MeterError> {
    exchange
        .get::<Principal>()
        .ok_or(MeterError::Missing { what: "principal" })
}

fn uncounted(error: crate::estimate::CountError) -> FilterError {
    FilterError::new(crate::error::unmetered(), error)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

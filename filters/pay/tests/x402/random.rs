//! With messages lost, duplicated or reordered, crashes and clock jumps: transfers to the merchant are paid periods.

use proptest::prelude::*;
use tollgate_pay::x402::{Operation, Payment, PurchaseOutcome};
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call};

use crate::support::process::{ACCOUNT, OTHER_ACCOUNT};
use crate::testbed::{Crash, TestBed};

/// The next event.
#[derive(Clone, Debug)]
enum Step {
    /// The buyer's program requests the plan, and signs when it gets an offer: it pays every 402, as stock programs do.
    Buy,
    /// It presents its last payment again.
    Again,
    /// It presents an older one.
    Older(usize),
    /// Another account presents a payment of the buyer's.
    Stolen(usize),
    /// A client presents a payment and disconnects at once.
    Leave,
    /// A fault in coming calls.
    Fault(Call, Effect, u32),
    /// The process crashes at a coming call.
    Die(Crash),
    /// It crashes now.
    Restart,
    /// Pending transactions are included in a block, or never will be.
    Mine(bool),
    /// The node lags by so many blocks, or catches up.
    Lag(u64),
    /// Time advances.
    Wait(u64),
    /// Our clock is off by so many seconds.
    Jump(i64),
    /// The processor reconciles due payments.
    Turn,
    /// No more faults.
    Calm,
}

fn effect() -> impl Strategy<Value = Effect> {
    prop_oneof![
        3 => Just(Effect::LoseAnswer),
        3 => Just(Effect::LoseCall),
        2 => Just(Effect::FailAfter),
        2 => Just(Effect::Pending(200)),
        1 => Just(Effect::Status(503)),
        1 => Just(Effect::Refuse("unexpected_settle_error".to_owned(), 500)),
        1 => Just(Effect::Refuse("invalid_exact_evm_transaction_simulation_failed".to_owned(), 200)),
        1 => Just(Effect::Refuse("insufficient_funds".to_owned(), 200)),
        1 => Just(Effect::RefuseAfter("insufficient_funds".to_owned())),
        2 => Just(Effect::SettleThenRefuse("insufficient_funds".to_owned())),
        2 => Just(Effect::SubmitThenRefuse("insufficient_funds".to_owned())),
        1 => Just(Effect::Phantom),
        1 => Just(Effect::OldTransaction),
        1 => Just(Effect::Reverted),
        1 => Just(Effect::StrangePayer),
        1 => Just(Effect::NoTransaction),
        1 => Just(Effect::Nonsense),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let call = prop::sample::select(vec![Call::Verify, Call::Settle, Call::Settle, Call::Rpc]);
    let crash = prop::sample::select(vec![
        Crash::Before(Operation::Verify),
        Crash::After(Operation::Verify),
        Crash::Before(Operation::Settle),
        Crash::After(Operation::Settle),
    ]);
    prop_oneof![
        6 => Just(Step::Buy),
        3 => Just(Step::Again),
        1 => (0usize..8).prop_map(Step::Older),
        1 => (0usize..8).prop_map(Step::Stolen),
        1 => Just(Step::Leave),
        5 => (call, effect(), 1u32..4).prop_map(|(call, effect, times)| Step::Fault(call, effect, times)),
        3 => crash.prop_map(Step::Die),
        1 => Just(Step::Restart),
        2 => any::<bool>().prop_map(Step::Mine),
        2 => prop::sample::select(vec![0, 1, 30, 400]).prop_map(Step::Lag),
        3 => (1u64..200).prop_map(Step::Wait),
        1 => (-600i64..600).prop_map(Step::Jump),
        3 => Just(Step::Turn),
        1 => Just(Step::Calm),
    ]
}

struct Buyer {
    wallet: Wallet,
    sent: Vec<Payment>,
}

impl Buyer {
    /// The buyer's next payment, where an offer is shown.
    fn sign(&mut self, bed: &mut TestBed) -> Option<Payment> {
        match bed.ask(ACCOUNT) {
            Some(PurchaseOutcome::Offer) => {
                let nonce = u8::try_from(self.sent.len() + 1).expect("few payments");
                self.sent.push(bed.payment(&self.wallet, nonce));
                self.sent.last().cloned()
            }
            _ => None,
        }
    }
}

fn act(bed: &mut TestBed, buyer: &mut Buyer, step: &Step) {
    match step {
        Step::Buy => {
            if let Some(payment) = buyer.sign(bed) {
                bed.present(ACCOUNT, &payment);
            }
        }
        Step::Again => {
            if let Some(payment) = buyer.sent.last().cloned() {
                bed.present(ACCOUNT, &payment);
            }
        }
        Step::Older(at) => {
            if let Some(payment) = buyer.sent.get(*at).cloned() {
                bed.present(ACCOUNT, &payment);
            }
        }
        Step::Stolen(at) => {
            // A payment that was presented is the buyer's; one that was not cannot be known to another account.
            if let Some(payment) = buyer.sent.get(*at).cloned()
                && bed.state(&payment).is_some()
            {
                let outcome = bed.present(OTHER_ACCOUNT, &payment);
                assert!(
                    matches!(outcome, None | Some(PurchaseOutcome::UsedByAnother)),
                    "another account was outcome {outcome:?}"
                );
            }
        }
        Step::Leave => {
            if let Some(payment) = buyer.sign(bed) {
                bed.present_and_disconnect(&payment);
            }
        }
        Step::Fault(call, effect, times) => {
            let fault = Fault::once(*call, effect.clone());
            bed.facilitator.fault(fault.times(*times));
        }
        Step::Die(crash) => bed.crash(*crash),
        Step::Restart => {
            bed.restart();
            bed.recover();
        }
        Step::Mine(arrives) => {
            bed.facilitator.mine(*arrives);
        }
        Step::Lag(blocks) => bed.facilitator.lag(*blocks),
        Step::Wait(secs) => bed.advance(*secs),
        Step::Jump(off) => bed.jump(*off),
        Step::Turn => {
            bed.reconcile_due();
        }
        Step::Calm => bed.facilitator.no_faults(),
    }
    assert!(
        bed.payments(ACCOUNT) <= bed.transfers(),
        "nothing is given that was not paid"
    );
    assert!(bed.transfers() <= 1, "no purchase is paid twice");
    assert_eq!(bed.payments(OTHER_ACCOUNT), 0);
}

/// Faults end: open payments are closed.
fn settle(bed: &mut TestBed) {
    bed.restart();
    bed.facilitator.no_faults();
    bed.facilitator.lag(0);
    bed.facilitator.mine(true);
    bed.jump(0);
    bed.recover();
    for _ in 0..40 {
        bed.advance(60);
        bed.reconcile_due();
        if !bed.has_open() {
            return;
        }
    }
    panic!("a payment stays unclear although everything works");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn transfers_to_the_merchant_are_paid_periods(steps in prop::collection::vec(step(), 1..24), remembers: bool) {
        let mut bed = TestBed::new();
        if remembers {
            bed.facilitator.remember();
        }
        let mut buyer = Buyer { wallet: Wallet::new(1), sent: Vec::new() };
        for step in &steps {
            act(&mut bed, &mut buyer, step);
        }
        settle(&mut bed);
        prop_assert_eq!(bed.transfers(), bed.payments(ACCOUNT));
        prop_assert!(bed.transfers() <= 1);
        prop_assert_eq!(bed.days_left(ACCOUNT).is_some(), bed.transfers() == 1);
        bed.check_books();
        // A buyer without the plan can buy it, and has then paid once.
        if let Some(payment) = buyer.sign(&mut bed) {
            prop_assert!(matches!(bed.present(ACCOUNT, &payment), Some(PurchaseOutcome::Done(_))));
        }
        prop_assert_eq!(bed.transfers(), 1);
        prop_assert_eq!(bed.payments(ACCOUNT), 1);
    }
}

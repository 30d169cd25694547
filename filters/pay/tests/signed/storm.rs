//! With messages lost, duplicated or reordered, crashes and clock jumps: transfers to the merchant are paid periods.

use proptest::prelude::*;
use tollgate_pay::x402::{Operation, Payment, Told};
use tollgate_testing::Wallet;
use tollgate_testing::facilitator::{Effect, Fault, Operation as Call};

use crate::shop::{ANOTHER, Death, ME, Shop};

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
    Die(Death),
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
    let death = prop::sample::select(vec![
        Death::Before(Operation::Verify),
        Death::After(Operation::Verify),
        Death::Before(Operation::Settle),
        Death::After(Operation::Settle),
    ]);
    prop_oneof![
        6 => Just(Step::Buy),
        3 => Just(Step::Again),
        1 => (0usize..8).prop_map(Step::Older),
        1 => (0usize..8).prop_map(Step::Stolen),
        1 => Just(Step::Leave),
        5 => (call, effect(), 1u32..4).prop_map(|(call, effect, times)| Step::Fault(call, effect, times)),
        3 => death.prop_map(Step::Die),
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
    fn sign(&mut self, shop: &mut Shop) -> Option<Payment> {
        match shop.ask(ME) {
            Some(Told::Offer) => {
                let nonce = u8::try_from(self.sent.len() + 1).expect("few payments");
                self.sent.push(shop.payment(&self.wallet, nonce));
                self.sent.last().cloned()
            }
            _ => None,
        }
    }
}

fn act(shop: &mut Shop, buyer: &mut Buyer, step: &Step) {
    match step {
        Step::Buy => {
            if let Some(payment) = buyer.sign(shop) {
                shop.bring(ME, &payment);
            }
        }
        Step::Again => {
            if let Some(payment) = buyer.sent.last().cloned() {
                shop.bring(ME, &payment);
            }
        }
        Step::Older(at) => {
            if let Some(payment) = buyer.sent.get(*at).cloned() {
                shop.bring(ME, &payment);
            }
        }
        Step::Stolen(at) => {
            // A payment that was presented is the buyer's; one that was not cannot be known to another account.
            if let Some(payment) = buyer.sent.get(*at).cloned()
                && shop.state(&payment).is_some()
            {
                let told = shop.bring(ANOTHER, &payment);
                assert!(
                    matches!(told, None | Some(Told::UsedByAnother)),
                    "another account was told {told:?}"
                );
            }
        }
        Step::Leave => {
            if let Some(payment) = buyer.sign(shop) {
                shop.bring_and_leave(ME, &payment);
            }
        }
        Step::Fault(call, effect, times) => {
            let fault = Fault::once(*call, effect.clone());
            shop.facilitator.fault(fault.times(*times));
        }
        Step::Die(death) => shop.die(*death),
        Step::Restart => {
            shop.restart();
            shop.recover();
        }
        Step::Mine(arrives) => {
            shop.facilitator.mine(*arrives);
        }
        Step::Lag(blocks) => shop.facilitator.lag(*blocks),
        Step::Wait(secs) => shop.advance(*secs),
        Step::Jump(off) => shop.jump(*off),
        Step::Turn => {
            shop.turn();
        }
        Step::Calm => shop.facilitator.no_faults(),
    }
    assert!(
        shop.payments(ME) <= shop.transfers(),
        "nothing is given that was not paid"
    );
    assert!(shop.transfers() <= 1, "nobody pays twice");
    assert_eq!(shop.payments(ANOTHER), 0);
}

/// Faults end: open payments are closed.
fn settle_down(shop: &mut Shop) {
    shop.restart();
    shop.facilitator.no_faults();
    shop.facilitator.lag(0);
    shop.facilitator.mine(true);
    shop.jump(0);
    shop.recover();
    for _ in 0..40 {
        shop.advance(60);
        shop.turn();
        if !shop.has_open() {
            return;
        }
    }
    panic!("a payment stays unclear although everything works");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn transfers_to_the_merchant_are_paid_periods(steps in prop::collection::vec(step(), 1..24), remembers: bool) {
        let mut shop = Shop::new();
        if remembers {
            shop.facilitator.remember();
        }
        let mut buyer = Buyer { wallet: Wallet::new(1), sent: Vec::new() };
        for step in &steps {
            act(&mut shop, &mut buyer, step);
        }
        settle_down(&mut shop);
        prop_assert_eq!(shop.transfers(), shop.payments(ME));
        prop_assert!(shop.transfers() <= 1);
        prop_assert_eq!(shop.days_left(ME).is_some(), shop.transfers() == 1);
        shop.check_books();
        // A buyer without the plan can buy it, and has then paid once.
        if let Some(payment) = buyer.sign(&mut shop) {
            prop_assert!(matches!(shop.bring(ME, &payment), Some(Told::Done(_))));
        }
        prop_assert_eq!(shop.transfers(), 1);
        prop_assert_eq!(shop.payments(ME), 1);
    }
}

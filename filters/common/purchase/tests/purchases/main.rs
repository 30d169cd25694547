//! Purchases against a provider that loses calls and answers, and a process that dies at any of them.

#[path = "../faults/mod.rs"]
mod faults;
mod plan;
mod shop;
mod world;

use proptest::prelude::*;
use shop::{CREDITS, PRICE, Shop};
use tollgate_money::{TopUpId, Usd};
use tollgate_purchase::{BeginError, CaptureStatus, Notice, OrderStatus, Wish};
use tollgate_store::{Ring, TopUpState};
use world::Fault;

fn id(number: u8) -> TopUpId {
    TopUpId::from_bytes([number; 16])
}

fn approve(shop: &Shop, number: u8) {
    shop.world.change(&id(number).to_string(), |made| {
        if made.status == OrderStatus::Waiting {
            made.status = OrderStatus::Approved;
        }
    });
}

fn look(shop: &mut Shop, number: u8) {
    shop.at_desk(|desk| async move { desk.look(id(number), true).await });
}

fn state(shop: &Shop, number: u8) -> TopUpState {
    shop.row(id(number)).expect("a purchase").state
}

#[test]
fn a_purchase_that_goes_well_is_credited_once_whoever_looks_again() {
    let mut shop = Shop::new();
    let begun = shop.begin(id(1)).expect("alive").expect("begins");
    assert_eq!(begun.state, TopUpState::Open);
    assert!(begun.approve_url.is_some());
    look(&mut shop, 1);
    assert_eq!(state(&shop, 1), TopUpState::Open, "nobody has agreed");
    approve(&shop, 1);
    look(&mut shop, 1);
    assert_eq!(state(&shop, 1), TopUpState::Captured);
    for _ in 0..3 {
        look(&mut shop, 1);
    }
    shop.settle();
    assert_eq!(shop.available(), CREDITS);
    assert_eq!(shop.world.takings(), 1);
    shop.check_books();
}

#[test]
fn a_form_that_is_sent_twice_is_one_purchase() {
    let mut shop = Shop::new();
    let first = shop.begin(id(1)).expect("alive").expect("begins");
    let second = shop.begin(id(1)).expect("alive").expect("is found");
    assert_eq!(first, second);
    assert_eq!(shop.world.orders_of(&id(1).to_string()).len(), 1);
    let other = Wish {
        id: id(1),
        account: shop::ACCOUNT,
        price: Usd::from_cents(4_000),
        return_url: String::new(),
        cancel_url: String::new(),
    };
    let other = shop.at_desk(|desk| async move { desk.begin(other).await });
    assert!(matches!(
        other.expect("alive"),
        Err(BeginError::OtherPurchase(_))
    ));
}

#[test]
fn an_order_whose_making_was_lost_is_made_once() {
    for fault in [Fault::AnswerLost, Fault::CallLost, Fault::Unavailable] {
        let mut shop = Shop::new();
        shop.world.faults([fault]);
        let lost = shop.begin(id(1)).expect("alive");
        assert!(matches!(lost, Err(BeginError::Provider(_))), "{fault:?}");
        shop.begin(id(1)).expect("alive").expect("begins");
        assert_eq!(
            shop.world.orders_of(&id(1).to_string()).len(),
            1,
            "{fault:?}"
        );
    }
}

/// The process dies, or the answer is lost, at every call of a purchase in turn: the buyer pays once and has the credits once,
/// without doing anything more.
#[test]
fn whatever_is_lost_after_the_buyer_agreed_the_credits_come_once() {
    for fault in [
        Fault::AnswerLost,
        Fault::CallLost,
        Fault::Unavailable,
        Fault::DeathBefore,
        Fault::DeathAfter,
    ] {
        for at in 0..4 {
            let mut shop = Shop::new();
            shop.begin(id(1)).expect("alive").expect("begins");
            approve(&shop, 1);
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            shop.world.faults(faults);
            look(&mut shop, 1);
            shop.settle();
            let what = format!("{fault:?} at call {at}");
            assert_eq!(state(&shop, 1), TopUpState::Captured, "{what}");
            assert_eq!(shop.available(), CREDITS, "{what}");
            assert_eq!(shop.world.takings(), 1, "{what}");
            shop.check_books();
        }
    }
}

#[test]
fn a_choice_that_was_declined_costs_nothing_and_the_next_one_pays() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    shop.world
        .change(&id(1).to_string(), |made| made.declines = true);
    look(&mut shop, 1);
    let row = shop.row(id(1)).expect("stored");
    assert_eq!((row.state, row.declines), (TopUpState::Open, 1));
    assert_eq!(shop.available(), 0);
    // By itself nothing is tried again; the buyer who comes back is news.
    shop.at_desk(|desk| async move { desk.look(id(1), false).await });
    assert_eq!(shop.world.takings(), 0);
    look(&mut shop, 1);
    assert_eq!(state(&shop, 1), TopUpState::Captured);
    assert_eq!(shop.available(), CREDITS);
}

#[test]
fn news_that_came_before_a_lost_answer_is_news_still() {
    for rung in [false, true] {
        let mut shop = Shop::new();
        shop.begin(id(1)).expect("alive").expect("begins");
        approve(&shop, 1);
        shop.world
            .change(&id(1).to_string(), |made| made.declines = true);
        look(&mut shop, 1);
        assert_eq!(shop.row(id(1)).expect("stored").declines, 1);
        // The buyer agrees again, and comes back or lets PayPal say so; the first reading of the order is lost.
        shop.world.faults([Fault::CallLost]);
        if rung {
            let notice = Notice {
                id: String::from("WH-1"),
                kind: String::from("CHECKOUT.ORDER.APPROVED"),
                about: Some(Ring::TopUp(id(1))),
            };
            shop.at_desk(|desk| async move { desk.hear(notice).await });
            let looked = shop.at_desk(|desk| async move { desk.turn().await });
            assert_eq!(looked, Some(1));
        } else {
            look(&mut shop, 1);
        }
        assert_eq!(state(&shop, 1), TopUpState::Open);
        let looked = shop.at_desk(|desk| async move { desk.turn().await });
        assert_eq!(looked, Some(0), "a provider that fails is given time");
        shop.world.advance(60);
        shop.at_desk(|desk| async move { desk.turn().await });
        assert_eq!(state(&shop, 1), TopUpState::Captured, "rung: {rung}");
        assert_eq!(shop.available(), CREDITS);
        let row = shop.row(id(1)).expect("stored");
        assert_eq!(row.rings, row.rings_heard);
    }
}

#[test]
fn choices_are_declined_only_so_often() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    for _ in 0..5 {
        shop.world
            .change(&id(1).to_string(), |made| made.declines = true);
        look(&mut shop, 1);
    }
    assert_eq!(state(&shop, 1), TopUpState::Failed);
    shop.settle();
    assert_eq!((shop.available(), shop.world.takings()), (0, 0));
}

#[test]
fn money_on_its_way_is_credited_when_it_is_there_and_not_before() {
    for (then, credits, end) in [
        (CaptureStatus::Completed, CREDITS, TopUpState::Captured),
        (CaptureStatus::Declined, 0, TopUpState::Failed),
    ] {
        let mut shop = Shop::new();
        shop.begin(id(1)).expect("alive").expect("begins");
        approve(&shop, 1);
        let top_up = id(1).to_string();
        shop.world.change(&top_up, |made| made.slow = true);
        look(&mut shop, 1);
        shop.settle();
        assert_eq!(state(&shop, 1), TopUpState::Pending);
        assert_eq!(shop.available(), 0, "nothing is credited for a promise");
        shop.world.change(&top_up, |made| {
            made.capture.as_mut().expect("taken").status = then;
        });
        shop.settle();
        assert_eq!(
            (state(&shop, 1), shop.available()),
            (end, credits),
            "{then:?}"
        );
    }
}

#[test]
fn an_order_that_nobody_agrees_to_ends_without_a_payment() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    shop.world.faults([Fault::CallLost]);
    let lost = shop.begin(id(2)).expect("alive");
    assert!(lost.is_err(), "its order is never made");
    shop.settle();
    assert_eq!(state(&shop, 1), TopUpState::Failed);
    assert_eq!(state(&shop, 2), TopUpState::Failed);
    let again = shop.begin(id(2)).expect("alive").expect("is found");
    assert_eq!(again.state, TopUpState::Failed, "what is over stays over");
}

#[test]
fn a_notice_is_heard_once_and_makes_the_desk_look() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    let notice = || Notice {
        id: String::from("WH-1"),
        kind: String::from("CHECKOUT.ORDER.APPROVED"),
        about: Some(Ring::Order("ORDER-1".into())),
    };
    for (number, new) in [(1, true), (2, false), (3, false)] {
        let heard = shop.at_desk(|desk| async move { desk.hear(notice()).await });
        assert_eq!(heard.expect("alive").expect("stored"), new, "time {number}");
    }
    // The process dies before anybody looks: the bell is stored.
    shop.die();
    shop.at_desk(|desk| async move { desk.turn().await });
    assert_eq!(state(&shop, 1), TopUpState::Captured);
    let stranger = Notice {
        id: String::from("WH-2"),
        kind: String::from("PAYMENT.CAPTURE.COMPLETED"),
        about: Some(Ring::TopUp(id(77))),
    };
    let heard = shop.at_desk(|desk| async move { desk.hear(stranger).await });
    assert!(
        heard.expect("alive").expect("stored"),
        "it concerns nobody here"
    );
    assert_eq!(shop.available(), CREDITS);
}

#[test]
fn credits_are_taken_back_for_money_that_goes_back_as_far_as_they_are_there() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    look(&mut shop, 1);
    let top_up = id(1).to_string();
    let give_back = |shop: &mut Shop, cents| {
        shop.world
            .change(&top_up, |made| made.returned = Usd::from_cents(cents));
        for _ in 0..2 {
            look(shop, 1);
        }
    };
    give_back(&mut shop, 500);
    assert_eq!(shop.available(), CREDITS / 4 * 3, "a quarter, once");
    shop.spend(CREDITS / 2);
    give_back(&mut shop, PRICE.cents());
    let row = shop.row(id(1)).expect("stored");
    assert_eq!(shop.available(), 0, "what is left");
    assert_eq!(row.taken_back.get(), CREDITS / 2);
    assert_eq!(row.owed.get(), CREDITS / 2, "what was spent already");
    shop.settle();
    assert_eq!(shop.available(), 0, "nothing is taken twice");
    shop.check_books();
}

#[test]
fn credits_that_are_held_when_the_money_goes_back_are_taken_when_they_come_free() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    look(&mut shop, 1);
    shop.hold(CREDITS);
    shop.world
        .change(&id(1).to_string(), |made| made.returned = PRICE);
    look(&mut shop, 1);
    let owed = |shop: &Shop| shop.row(id(1)).expect("stored").owed.get();
    assert_eq!(owed(&shop), CREDITS, "all of it is held");
    let counted = shop.counts().returned;
    // Half of it comes free, and later the rest; nobody comes back and nothing rings.
    for left in [CREDITS / 2, 0] {
        shop.release();
        shop.hold(left);
        shop.settle();
        assert_eq!((owed(&shop), shop.available()), (left, 0));
        shop.check_books();
    }
    assert_eq!(shop.counts().returned, counted, "it went back once");
    // The books are right again: what is bought now is the buyer's.
    shop.begin(id(2)).expect("alive").expect("begins");
    approve(&shop, 2);
    look(&mut shop, 2);
    shop.settle();
    assert_eq!(shop.available(), CREDITS);
}

#[test]
fn credits_that_were_spent_before_the_money_went_back_are_taken_from_the_next_purchase() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    look(&mut shop, 1);
    shop.spend(CREDITS / 4);
    let top_up = id(1).to_string();
    shop.world.change(&top_up, |made| made.returned = PRICE);
    look(&mut shop, 1);
    shop.begin(id(2)).expect("alive").expect("begins");
    // Meanwhile the first order is gone; what is owed is known without it.
    shop.world.lose(&top_up);
    approve(&shop, 2);
    look(&mut shop, 2);
    shop.settle();
    assert_eq!(shop.available(), CREDITS / 4 * 3);
    assert_eq!(shop.row(id(1)).expect("stored").owed.get(), 0);
    shop.check_books();
}

#[test]
fn a_payment_that_was_asked_for_and_whose_order_is_gone_is_shown_to_a_person() {
    for slow in [false, true] {
        let mut shop = Shop::new();
        shop.begin(id(1)).expect("alive").expect("begins");
        approve(&shop, 1);
        let top_up = id(1).to_string();
        shop.world.change(&top_up, |made| made.slow = slow);
        // The money is asked for, and the answer and what follows are lost.
        shop.world
            .faults([Fault::None, Fault::AnswerLost, Fault::Unavailable]);
        look(&mut shop, 1);
        if slow {
            look(&mut shop, 1);
        }
        let before = state(&shop, 1);
        let expected = if slow {
            TopUpState::Pending
        } else {
            TopUpState::Capturing
        };
        assert_eq!(before, expected);
        shop.world.lose(&top_up);
        look(&mut shop, 1);
        assert_eq!(shop.counts().stuck, 0, "it may yet come back");
        shop.world.advance(7 * 3_600);
        look(&mut shop, 1);
        assert_eq!(shop.counts().stuck, 1);
        let row = shop.row(id(1)).expect("stored");
        assert_eq!(row.state, before, "nothing is concluded from it");
        assert!(row.note.is_some_and(|note| note.contains("gone")));
        assert_eq!(shop.available(), 0);
    }
}

#[test]
fn money_that_goes_back_without_a_notice_is_found_within_a_day() {
    let mut shop = Shop::new();
    shop.begin(id(1)).expect("alive").expect("begins");
    approve(&shop, 1);
    look(&mut shop, 1);
    shop.world
        .change(&id(1).to_string(), |made| made.returned = PRICE);
    shop.settle();
    assert_eq!(shop.available(), 0);
}

#[test]
fn unfinished_purchases_of_one_account_are_bounded() {
    let mut shop = Shop::new();
    for number in 1..=10 {
        shop.begin(id(number)).expect("alive").expect("begins");
    }
    let more = shop.begin(id(11)).expect("alive");
    assert!(matches!(more, Err(BeginError::TooMany { open: 10 })));
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Act {
    Begin(u8),
    Approve(u8),
    DeclineNext(u8),
    SlowNext(u8),
    Returned(u8),
    Turn,
    Notice(u8, u8),
    GiveBack(u8, i64),
    Hold(i64),
    Release,
    Wait(i64),
    ForgetKeys,
    Die,
}

fn act() -> impl Strategy<Value = Act> {
    let one = 1..4u8;
    prop_oneof![
        4 => one.clone().prop_map(Act::Begin),
        4 => one.clone().prop_map(Act::Approve),
        1 => one.clone().prop_map(Act::DeclineNext),
        1 => one.clone().prop_map(Act::SlowNext),
        4 => one.clone().prop_map(Act::Returned),
        4 => Just(Act::Turn),
        3 => (one.clone(), 0..6u8).prop_map(|(one, notice)| Act::Notice(one, notice)),
        1 => (one, 1..2_000i64).prop_map(|(one, cents)| Act::GiveBack(one, cents)),
        1 => (1..CREDITS).prop_map(Act::Hold),
        1 => Just(Act::Release),
        2 => (1..20_000i64).prop_map(Act::Wait),
        1 => Just(Act::ForgetKeys),
        1 => Just(Act::Die),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::AnswerLost),
        1 => Just(Fault::CallLost),
        1 => Just(Fault::Unavailable),
        1 => Just(Fault::DeathBefore),
        1 => Just(Fault::DeathAfter),
    ]
}

fn play(shop: &mut Shop, act: &Act) {
    match *act {
        Act::Begin(one) => {
            // Whoever gets no answer tries again some time.
            let _ = shop.begin(id(one));
        }
        Act::Approve(one) => approve(shop, one),
        Act::DeclineNext(one) => {
            shop.world.change(&id(one).to_string(), |made| {
                made.declines = made.capture.is_none();
            });
        }
        Act::SlowNext(one) => shop
            .world
            .change(&id(one).to_string(), |made| made.slow = true),
        Act::Returned(one) => look(shop, one),
        Act::Turn => {
            shop.at_desk(|desk| async move { desk.turn().await });
        }
        Act::Notice(one, notice) => {
            let notice = Notice {
                id: format!("WH-{notice}"),
                kind: String::from("PAYMENT.CAPTURE.COMPLETED"),
                about: Some(Ring::TopUp(id(one))),
            };
            shop.at_desk(|desk| async move { desk.hear(notice).await });
        }
        Act::GiveBack(one, cents) => shop.world.change(&id(one).to_string(), |made| {
            let done =
                |capture: &tollgate_purchase::Capture| capture.status == CaptureStatus::Completed;
            if made.capture.as_ref().is_some_and(done) {
                made.returned = made.returned.max(Usd::from_cents(cents));
            }
        }),
        Act::Hold(micros) => shop.hold(micros.min(shop.available())),
        Act::Release => shop.release(),
        Act::Wait(secs) => shop.world.advance(secs),
        Act::ForgetKeys => {
            // The provider keeps keys for six hours.
            shop.world.advance(6 * 3_600);
            shop.world.forget_keys();
        }
        Act::Die => shop.die(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever buyers, notices, crashes and lost answers do, in any order: in the end what was taken at the provider's and not given
    /// back is what stands in the books, to the last micro-credit, and nobody has paid twice for one purchase.
    #[test]
    fn what_is_taken_is_what_is_credited(
        acts in prop::collection::vec(act(), 1..40),
        faults in prop::collection::vec(fault(), 0..40),
    ) {
        let mut shop = Shop::new();
        shop.world.faults(faults);
        for act in &acts {
            play(&mut shop, act);
        }
        // What was on its way arrives; then everything calms down.
        for number in 1..4 {
            shop.world.change(&id(number).to_string(), |made| {
                made.slow = false;
                if let Some(capture) = &mut made.capture {
                    capture.status = CaptureStatus::Completed;
                }
            });
        }
        // The first days with whatever is held still, and then without.
        shop.settle();
        prop_assert!(shop.available() >= 0);
        shop.release();
        shop.settle();
        let mut expected = 0;
        for number in 1..4 {
            let orders = shop.world.orders_of(&id(number).to_string());
            let paid: Vec<_> = orders.iter().filter(|made| made.capture.is_some()).collect();
            prop_assert!(paid.len() <= 1, "purchase {number} was paid {} times", paid.len());
            let row = shop.row(id(number));
            for made in &paid {
                let row = row.as_ref().expect("only what is stored is paid");
                prop_assert_eq!(row.state, TopUpState::Captured, "purchase {} is paid", number);
                prop_assert_eq!(row.owed.get(), 0, "nothing is owed for purchase {}", number);
                // A cent buys a credit in this shop.
                expected += (PRICE.cents() - made.returned.cents()) * 1_000_000;
            }
            if let (Some(row), true) = (&row, paid.is_empty()) {
                prop_assert_eq!(row.state, TopUpState::Failed, "purchase {} is over", number);
            }
        }
        prop_assert_eq!(shop.available(), expected);
        shop.check_books();
    }
}

//! Checkouts: whatever is lost on the way, their owner gets the plan once, and an end is an end.

use tollgate_money::{AccountId, CheckoutId};
use tollgate_purchase::checkouts::{CheckoutError, New, Status, View, Wish};
use tollgate_purchase::mandates::Urls;
use tollgate_store::{CheckoutState, MandateRow, MandateState};

use crate::FAULTS;
use crate::shop::{ACCOUNT, CHECKOUT_LASTS, Shop};
use crate::world::{Fault, Purse};

fn new() -> New {
    New {
        account: ACCOUNT,
        credential: None,
        platform: None,
        wish: wish(true),
    }
}

fn wish(has_plan: bool) -> Wish {
    Wish {
        has_plan,
        buyer: None,
    }
}

fn urls() -> Urls {
    Urls {
        return_url: String::from("https://example.com/back"),
        cancel_url: String::from("https://example.com/left"),
    }
}

impl Shop {
    fn begin(&mut self) -> Result<View, CheckoutError> {
        let begun = self.at_checkouts(|desk| async move { desk.begin(new(), &|_| vec![]).await });
        begun.expect("alive")
    }

    fn begun(&mut self) -> CheckoutId {
        self.begin().expect("is sold").row.id
    }

    fn look(&mut self, id: CheckoutId) -> View {
        let found = self.at_checkouts(|desk| async move { desk.find(ACCOUNT, id).await });
        found.expect("alive").expect("readable").expect("there")
    }

    fn status(&mut self, id: CheckoutId) -> Status {
        self.look(id).status()
    }

    fn lead(&mut self, id: CheckoutId) -> Option<Result<Option<MandateRow>, CheckoutError>> {
        let view = self.look(id);
        let led = self.at_checkouts(|desk| async move { desk.lead(view, urls()).await })?;
        Some(led.map(|(_, mandate)| mandate))
    }

    fn led(&mut self, id: CheckoutId) -> MandateRow {
        let led = self.lead(id).expect("alive").expect("offered");
        led.expect("something to agree to")
    }

    fn ask(&mut self, id: CheckoutId) -> Option<Result<Status, CheckoutError>> {
        let view = self.look(id);
        let asked = self.at_checkouts(|desk| async move { desk.ask(view, &|_| vec![]).await })?;
        Some(asked.map(|view| view.status()))
    }

    fn cancel(&mut self, id: CheckoutId) -> Result<Status, CheckoutError> {
        let view = self.look(id);
        let done = self.at_checkouts(|desk| async move { desk.cancel(view, &|_| vec![]).await });
        done.expect("alive").map(|view| view.status())
    }
}

#[test]
fn a_checkout_asks_nothing_of_the_provider_until_its_owner_opens_it() {
    let mut shop = Shop::new();
    let id = shop.begun();
    assert_eq!(shop.status(id), Status::RequiresEscalation);
    assert!(
        shop.world.all().is_empty(),
        "nothing was made at the provider"
    );
    let asked = shop.ask(id).expect("alive").expect("answered");
    assert_eq!(asked, Status::RequiresEscalation);
    let stranger = AccountId::from_bytes([9; 16]);
    let found = shop.at_checkouts(|desk| async move { desk.find(stranger, id).await });
    let found = found.expect("alive").expect("readable");
    assert_eq!(found, None, "another's checkout is none");
}

#[test]
fn checkouts_of_an_account_share_one_mandate_and_the_plan_completes_all_that_wait() {
    let mut shop = Shop::new();
    let (first, second, third) = (shop.begun(), shop.begun(), shop.begun());
    let mandate = shop.led(first);
    assert_eq!(shop.led(second).id, mandate.id, "one is offered");
    assert_eq!(shop.opened(), mandate.id, "to other ways of buying too");
    assert_eq!(shop.cancel(second).expect("cancelled"), Status::Canceled);
    assert_eq!(
        shop.row(mandate.id).state,
        MandateState::Open,
        "what others rely on stays"
    );
    shop.world.approve(mandate.id);
    let asked = shop.ask(first).expect("alive").expect("answered");
    assert_eq!(asked, Status::Completed);
    let done = shop.look(first);
    let subscription = shop.standing().subscription.expect("a plan");
    assert_eq!(done.row.subscription, Some(subscription.id));
    assert_eq!(shop.look(third).row.subscription, Some(subscription.id));
    assert_eq!(shop.status(second), Status::Canceled, "an end is an end");
    assert!(matches!(
        shop.cancel(first),
        Err(CheckoutError::NotModifiable(Status::Completed))
    ));
    let late = shop.begun();
    assert_eq!(
        shop.status(late),
        Status::Completed,
        "no second subscription"
    );
    assert_eq!(shop.look(late).row.subscription, Some(subscription.id));
    assert_eq!(shop.world.all().len(), 1);
    shop.check_books();
}

#[test]
fn a_plan_that_was_bought_in_another_way_completes_a_checkout_too() {
    let mut shop = Shop::new();
    let id = shop.begun();
    shop.transfer("0x1");
    assert_eq!(shop.status(id), Status::Completed);
    assert!(
        shop.lead(id)
            .expect("alive")
            .expect("nothing to do")
            .is_none()
    );
    assert!(shop.world.all().is_empty(), "nothing is offered any more");
}

#[test]
fn money_on_its_way_is_neither_a_plan_nor_an_end() {
    for arrives in [true, false] {
        let mut shop = Shop::new();
        let id = shop.begun();
        let mandate = shop.led(id);
        shop.world
            .change(mandate.id, |made| made.purse = Purse::Slow);
        shop.world.approve(mandate.id);
        let asked = shop.ask(id).expect("alive").expect("answered");
        assert_eq!(asked, Status::CompleteInProgress);
        assert!(matches!(
            shop.cancel(id),
            Err(CheckoutError::NotModifiable(Status::CompleteInProgress))
        ));
        let other = shop.begun();
        assert_eq!(shop.status(other), Status::CompleteInProgress);
        shop.world.advance(2 * CHECKOUT_LASTS);
        assert_eq!(
            shop.status(id),
            Status::CompleteInProgress,
            "it waits for the money"
        );
        shop.world.resolve(mandate.id, arrives);
        shop.pass(1);
        assert_eq!(shop.standing().is_active(), arrives);
        if arrives {
            assert_eq!(shop.status(id), Status::Completed);
            assert_eq!(shop.status(other), Status::Completed);
        }
        shop.check_books();
    }
}

#[test]
fn a_provider_that_does_not_answer_is_not_guessed_about() {
    let mut shop = Shop::new();
    let id = shop.begun();
    let mandate = shop.led(id);
    shop.world.approve(mandate.id);
    shop.world.faults([Fault::Unavailable]);
    let asked = shop.ask(id).expect("alive");
    assert!(
        matches!(asked, Err(CheckoutError::Provider(_))),
        "{asked:?}"
    );
    assert_eq!(shop.status(id), Status::RequiresEscalation);
    let view = shop.look(id);
    let returned = shop.at_checkouts(|desk| async move { desk.returned(view).await });
    let returned = returned.expect("alive").expect("noted");
    assert_eq!(returned.status(), Status::ReadyForComplete);
    let asked = shop.ask(id).expect("alive").expect("answered");
    assert_eq!(asked, Status::Completed);
    shop.check_books();
}

#[test]
fn a_checkout_that_nobody_opens_ends_and_takes_nothing_with_it() {
    let mut shop = Shop::new();
    let id = shop.begun();
    let mandate = shop.led(id);
    shop.world.advance(CHECKOUT_LASTS);
    assert_eq!(shop.status(id), Status::Canceled);
    assert!(
        shop.lead(id)
            .expect("alive")
            .expect("nothing to do")
            .is_none()
    );
    assert_eq!(shop.row(mandate.id).state, MandateState::Open);
    // Agreed to after all: the plan comes, and the checkout stays ended.
    shop.world.approve(mandate.id);
    shop.pass(1);
    assert!(shop.standing().is_active());
    assert_eq!(shop.status(id), Status::Canceled);
    shop.check_books();
}

#[test]
fn nothing_is_begun_where_nothing_can_be_sold() {
    let mut shop = Shop::new();
    shop.world.reprice(None);
    let begun = shop.begin();
    assert!(matches!(begun, Err(CheckoutError::Closed(_))), "{begun:?}");
    let empty = New {
        wish: wish(false),
        ..new()
    };
    let begun = shop.at_checkouts(|desk| async move { desk.begin(empty, &|_| vec![]).await });
    let begun = begun.expect("alive").expect("nothing is sold by it yet");
    assert_eq!(begun.row.state, CheckoutState::Incomplete);
    let filled = shop
        .at_checkouts(|desk| async move { desk.update(begun, wish(true), &|_| vec![]).await })
        .expect("alive");
    assert!(
        matches!(filled, Err(CheckoutError::Closed(_))),
        "{filled:?}"
    );
}

#[test]
fn a_request_to_complete_is_known_again() {
    let mut shop = Shop::new();
    let id = shop.begun();
    let mandate = shop.led(id);
    let note = |shop: &mut Shop, name: u8| {
        let view = shop.look(id);
        let noted =
            shop.at_checkouts(|desk| async move { desk.note_asked(view, [name; 32]).await });
        noted.expect("alive").expect("noted").1
    };
    assert!(!note(&mut shop, 1));
    shop.world.approve(mandate.id);
    shop.die();
    shop.verify(mandate.id);
    assert_eq!(shop.status(id), Status::Completed);
    assert!(note(&mut shop, 1), "the same request came again");
    assert!(!note(&mut shop, 2), "another one came too late");
}

/// The process dies, or an answer is lost, at every call from opening the page to completion: whoever tries again gets the plan, and one
/// subscription is charged.
#[test]
fn whatever_is_lost_the_owner_who_tries_again_gets_the_plan_once() {
    for fault in FAULTS {
        for at in 0..5 {
            let what = format!("{fault:?} at call {at}");
            let mut shop = Shop::new();
            let id = shop.begun();
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            shop.world.faults(faults);
            let mut mandate = None;
            for _ in 0..4 {
                if let Some(Ok(Some(led))) = shop.lead(id) {
                    mandate = Some(led.id);
                    break;
                }
            }
            let mandate = mandate.unwrap_or_else(|| panic!("{what}: nothing was offered"));
            shop.world.approve(mandate);
            for _ in 0..4 {
                if let Some(Ok(Status::Completed)) = shop.ask(id) {
                    break;
                }
            }
            assert_eq!(shop.status(id), Status::Completed, "{what}");
            assert_eq!(shop.world.kept().len(), 1, "{what}: charged once");
            shop.check_books();
        }
    }
}

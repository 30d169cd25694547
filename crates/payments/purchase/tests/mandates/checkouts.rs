//! Checkouts under faults: the owner gets the plan once, and a final status stays.

use tollgate_money::{AccountId, CheckoutId};
use tollgate_purchase::checkouts::{CheckoutContent, CheckoutError, NewCheckout, Status, View};
use tollgate_purchase::mandates::Urls;
use tollgate_store::{CheckoutState, MandateRow, MandateState};

use crate::FAULTS;
use crate::support::recurring_provider::{Fault, Funding};
use crate::testbed::{ACCOUNT, CHECKOUT_LIFETIME, TestBed};

fn new() -> NewCheckout {
    NewCheckout {
        account: ACCOUNT,
        credential: None,
        platform: None,
        content: content(true),
    }
}

fn content(has_plan: bool) -> CheckoutContent {
    CheckoutContent {
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

impl TestBed {
    fn begin(&mut self) -> Result<View, CheckoutError> {
        let begun = self
            .run_checkouts(|processor| async move { processor.begin(new(), &|_| vec![]).await });
        begun.expect("alive")
    }

    fn begun(&mut self) -> CheckoutId {
        self.begin().expect("is sold").row.id
    }

    fn view(&mut self, id: CheckoutId) -> View {
        let found =
            self.run_checkouts(|processor| async move { processor.find(ACCOUNT, id).await });
        found.expect("alive").expect("readable").expect("there")
    }

    fn status(&mut self, id: CheckoutId) -> Status {
        self.view(id).status()
    }

    fn open_mandate(
        &mut self,
        id: CheckoutId,
    ) -> Option<Result<Option<MandateRow>, CheckoutError>> {
        let view = self.view(id);
        let led = self
            .run_checkouts(|processor| async move { processor.open_mandate(view, urls()).await })?;
        Some(led.map(|(_, mandate)| mandate))
    }

    fn mandate(&mut self, id: CheckoutId) -> MandateRow {
        let led = self.open_mandate(id).expect("alive").expect("offered");
        led.expect("something to agree to")
    }

    fn reconcile(&mut self, id: CheckoutId) -> Option<Result<Status, CheckoutError>> {
        let view = self.view(id);
        let asked =
            self.run_checkouts(
                |processor| async move { processor.reconcile(view, &|_| vec![]).await },
            )?;
        Some(asked.map(|view| view.status()))
    }

    fn cancel(&mut self, id: CheckoutId) -> Result<Status, CheckoutError> {
        let view = self.view(id);
        let done = self
            .run_checkouts(|processor| async move { processor.cancel(view, &|_| vec![]).await });
        done.expect("alive").map(|view| view.status())
    }
}

#[test]
fn a_checkout_does_not_call_the_provider_until_its_owner_opens_it() {
    let mut bed = TestBed::new();
    let id = bed.begun();
    assert_eq!(bed.status(id), Status::RequiresEscalation);
    assert!(
        bed.provider.all().is_empty(),
        "nothing was made at the provider"
    );
    let asked = bed.reconcile(id).expect("alive").expect("answered");
    assert_eq!(asked, Status::RequiresEscalation);
    let other_account = AccountId::from_bytes([9; 16]);
    let found =
        bed.run_checkouts(|processor| async move { processor.find(other_account, id).await });
    let found = found.expect("alive").expect("readable");
    assert_eq!(found, None, "another's checkout is none");
}

#[test]
fn checkouts_of_an_account_share_one_mandate_and_the_plan_completes_all_that_wait() {
    let mut bed = TestBed::new();
    let (first, second, third) = (bed.begun(), bed.begun(), bed.begun());
    let mandate = bed.mandate(first);
    assert_eq!(bed.mandate(second).id, mandate.id, "one is offered");
    assert_eq!(bed.opened(), mandate.id, "to other ways of buying too");
    assert_eq!(bed.cancel(second).expect("cancelled"), Status::Canceled);
    assert_eq!(
        bed.row(mandate.id).state,
        MandateState::Open,
        "what others rely on stays"
    );
    bed.provider.approve(mandate.id);
    let asked = bed.reconcile(first).expect("alive").expect("answered");
    assert_eq!(asked, Status::Completed);
    let done = bed.view(first);
    let subscription = bed.state().subscription.expect("a plan");
    assert_eq!(done.row.subscription, Some(subscription.id));
    assert_eq!(bed.view(third).row.subscription, Some(subscription.id));
    assert_eq!(bed.status(second), Status::Canceled, "an end is an end");
    assert!(matches!(
        bed.cancel(first),
        Err(CheckoutError::NotModifiable(Status::Completed))
    ));
    let late = bed.begun();
    assert_eq!(
        bed.status(late),
        Status::Completed,
        "no second subscription"
    );
    assert_eq!(bed.view(late).row.subscription, Some(subscription.id));
    assert_eq!(bed.provider.all().len(), 1);
    bed.check_books();
}

#[test]
fn a_plan_bought_by_another_route_completes_a_checkout_too() {
    let mut bed = TestBed::new();
    let id = bed.begun();
    bed.transfer("0x1");
    assert_eq!(bed.status(id), Status::Completed);
    assert!(
        bed.open_mandate(id)
            .expect("alive")
            .expect("nothing to do")
            .is_none()
    );
    assert!(bed.provider.all().is_empty(), "nothing is offered any more");
}

#[test]
fn a_pending_payment_neither_completes_nor_cancels_a_checkout() {
    for arrives in [true, false] {
        let mut bed = TestBed::new();
        let id = bed.begun();
        let mandate = bed.mandate(id);
        bed.provider
            .change(mandate.id, |made| made.funding = Funding::Slow);
        bed.provider.approve(mandate.id);
        let asked = bed.reconcile(id).expect("alive").expect("answered");
        assert_eq!(asked, Status::CompleteInProgress);
        assert!(matches!(
            bed.cancel(id),
            Err(CheckoutError::NotModifiable(Status::CompleteInProgress))
        ));
        let other = bed.begun();
        assert_eq!(bed.status(other), Status::CompleteInProgress);
        bed.provider.advance(2 * CHECKOUT_LIFETIME);
        assert_eq!(
            bed.status(id),
            Status::CompleteInProgress,
            "it waits for the money"
        );
        bed.provider.resolve(mandate.id, arrives);
        bed.pass(1);
        assert_eq!(bed.state().is_active(), arrives);
        if arrives {
            assert_eq!(bed.status(id), Status::Completed);
            assert_eq!(bed.status(other), Status::Completed);
        }
        bed.check_books();
    }
}

#[test]
fn an_unreachable_provider_leaves_a_checkout_undecided() {
    let mut bed = TestBed::new();
    let id = bed.begun();
    let mandate = bed.mandate(id);
    bed.provider.approve(mandate.id);
    bed.provider.faults([Fault::Unavailable]);
    let asked = bed.reconcile(id).expect("alive");
    assert!(
        matches!(asked, Err(CheckoutError::Provider(_))),
        "{asked:?}"
    );
    assert_eq!(bed.status(id), Status::RequiresEscalation);
    let view = bed.view(id);
    let returned =
        bed.run_checkouts(|processor| async move { processor.owner_returned(view).await });
    let returned = returned.expect("alive").expect("noted");
    assert_eq!(returned.status(), Status::ReadyForComplete);
    let asked = bed.reconcile(id).expect("alive").expect("answered");
    assert_eq!(asked, Status::Completed);
    bed.check_books();
}

#[test]
fn an_unopened_checkout_expires_without_side_effects() {
    let mut bed = TestBed::new();
    let id = bed.begun();
    let mandate = bed.mandate(id);
    bed.provider.advance(CHECKOUT_LIFETIME);
    assert_eq!(bed.status(id), Status::Canceled);
    assert!(
        bed.open_mandate(id)
            .expect("alive")
            .expect("nothing to do")
            .is_none()
    );
    assert_eq!(bed.row(mandate.id).state, MandateState::Open);
    // Agreed to after all: the plan is granted, and the checkout stays cancelled.
    bed.provider.approve(mandate.id);
    bed.pass(1);
    assert!(bed.state().is_active());
    assert_eq!(bed.status(id), Status::Canceled);
    bed.check_books();
}

#[test]
fn no_checkout_is_created_while_nothing_can_be_sold() {
    let mut bed = TestBed::new();
    bed.provider.reprice(None);
    let begun = bed.begin();
    assert!(matches!(begun, Err(CheckoutError::Closed(_))), "{begun:?}");
    let empty = NewCheckout {
        content: content(false),
        ..new()
    };
    let begun =
        bed.run_checkouts(|processor| async move { processor.begin(empty, &|_| vec![]).await });
    let begun = begun.expect("alive").expect("nothing is sold by it yet");
    assert_eq!(begun.row.state, CheckoutState::Incomplete);
    let filled = bed
        .run_checkouts(|processor| async move {
            processor.update(begun, content(true), &|_| vec![]).await
        })
        .expect("alive");
    assert!(
        matches!(filled, Err(CheckoutError::Closed(_))),
        "{filled:?}"
    );
}

#[test]
fn a_repeated_completion_request_is_recognized() {
    let mut bed = TestBed::new();
    let id = bed.begun();
    let mandate = bed.mandate(id);
    let note = |bed: &mut TestBed, name: u8| {
        let view = bed.view(id);
        let noted = bed.run_checkouts(|processor| async move {
            processor.note_completion_request(view, [name; 32]).await
        });
        noted.expect("alive").expect("noted").1
    };
    assert!(!note(&mut bed, 1));
    bed.provider.approve(mandate.id);
    bed.crash();
    bed.verify(mandate.id);
    assert_eq!(bed.status(id), Status::Completed);
    assert!(note(&mut bed, 1), "the same request came again");
    assert!(!note(&mut bed, 2), "another one came too late");
}

/// A crash or a lost answer at each call from opening the page to completion: a retry gets the plan, and one subscription is charged.
#[test]
fn after_any_fault_a_retry_grants_the_plan_once() {
    for fault in FAULTS {
        for at in 0..5 {
            let what = format!("{fault:?} at call {at}");
            let mut bed = TestBed::new();
            let id = bed.begun();
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            bed.provider.faults(faults);
            let mut mandate = None;
            for _ in 0..4 {
                if let Some(Ok(Some(led))) = bed.open_mandate(id) {
                    mandate = Some(led.id);
                    break;
                }
            }
            let mandate = mandate.unwrap_or_else(|| panic!("{what}: nothing was offered"));
            bed.provider.approve(mandate);
            for _ in 0..4 {
                if let Some(Ok(Status::Completed)) = bed.reconcile(id) {
                    break;
                }
            }
            assert_eq!(bed.status(id), Status::Completed, "{what}");
            assert_eq!(bed.provider.kept().len(), 1, "{what}: charged once");
            bed.check_books();
        }
    }
}

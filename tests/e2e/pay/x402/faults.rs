//! What goes wrong on the way, and that the buyer has the plan or the money afterwards.

use tollgate_testing::facilitator::{Effect, Fault, Operation};
use tollgate_testing::within;

use super::{Shop, is};

/// Brings a payment until the answer is no 503 any more.
async fn until_clear(shop: &Shop, payment: &str) -> tollgate_testing::Answer {
    let mut often = tokio::time::interval(std::time::Duration::from_millis(50));
    let clear = async {
        loop {
            often.tick().await;
            let answer = shop.bring(payment).await;
            if answer.status != 503 {
                return answer;
            }
            assert_eq!(
                answer.header("payment-required"),
                None,
                "no offer meanwhile"
            );
            assert!(answer.header("retry-after").is_some());
        }
    };
    within("the end of what is unclear", clear).await
}

#[tokio::test]
async fn a_lost_answer_to_settle_is_found_on_the_chain_and_paid_once() {
    for effect in [
        Effect::LoseAnswer,
        Effect::FailAfter,
        Effect::StrangePayer,
        Effect::StrangeNetwork,
        Effect::NoTransaction,
        Effect::Nonsense,
        Effect::Flood,
        Effect::RefuseAfter("insufficient_funds".to_owned()),
        Effect::RefuseAfter("unexpected_settle_error".to_owned()),
    ] {
        let shop = Shop::open().await;
        let payment = shop.payment(1).await;
        shop.facilitator
            .fault(Fault::once(Operation::Settle, effect.clone()));
        // The second look is part of the same request: the number is used, and the chain says what for.
        let paid = until_clear(&shop, &payment).await;
        assert_eq!(paid.status, 200, "{effect:?}: {}", paid.text());
        assert!(paid.header("payment-response").is_some(), "{effect:?}");
        assert_eq!(shop.transfers(), 1, "{effect:?}");
        shop.close().await;
    }
}

#[tokio::test]
async fn without_a_node_a_facilitator_that_remembers_closes_what_was_lost() {
    let shop = Shop::without_node().await;
    shop.facilitator.remember();
    let payment = shop.payment(1).await;
    shop.facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    assert_eq!(until_clear(&shop, &payment).await.status, 200);
    assert_eq!(shop.transfers(), 1);
    shop.close().await;
}

#[tokio::test]
async fn what_nobody_can_explain_stays_unclear_and_nothing_is_offered_meanwhile() {
    let shop = Shop::without_node().await;
    let (payment, other) = (shop.payment(1).await, shop.payment(2).await);
    shop.facilitator
        .fault(Fault::once(Operation::Settle, Effect::LoseAnswer));
    for _ in 0..3 {
        let unclear = shop.bring(&payment).await;
        is(
            &unclear,
            503,
            "payment_route_unavailable",
            "processing",
            "retry_same",
        );
        for answer in [shop.ask().await, shop.bring(&other).await] {
            is(
                &answer,
                503,
                "payment_route_unavailable",
                "processing",
                "retry_same",
            );
            assert_eq!(answer.header("payment-required"), None);
            assert!(answer.header("retry-after").is_some());
        }
    }
    assert_eq!(shop.transfers(), 1);
    assert_eq!(shop.payments(), 0, "it is not known, so nothing was given");
    shop.rig.finish().await;
}

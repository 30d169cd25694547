//! `/commerce/products/{plan}`: the product document of the plan.

use serde_json::{Value, json};
use tollgate_purchase::wire::Product;

/// The product document: the plan, and the requirements of each payment protocol.
pub(crate) fn product(product: &Product) -> Value {
    let mut notes = json!({
        "ucp": "A checkout; the owner of the account agrees to the monthly payment at its continue_url.",
        "mpp": "Answers 402 with a Payment challenge; the owner of the account agrees to the monthly payment at its approval URL.",
        "x402": "Answers 402 with an offer of 199 USDC for 30 days. x402 clients refuse to pay more than 1 USD until their cap is raised: set \
                 it to 199000000 base units.",
        "paypal": "A page for people.",
    });
    if let Some(notes) = notes.as_object_mut() {
        notes.retain(|name, _| product.purchase.contains_key(name));
    }
    let mut value = serde_json::to_value(product).expect("texts and numbers are JSON");
    value["purchase_notes"] = notes;
    value
}

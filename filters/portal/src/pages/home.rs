//! `/`: what the account has.

use maud::html;
use tollgate_filter::Reply;
use tollgate_pages::{Page, Place, format, parts};

use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let viewer = visit.viewer(house)?;
    let balance = format::credits_2(viewer.available);
    let inside = html! {
        (parts::heading("Overview", None))
        (parts::figures("Account at a glance", &[
            ("Balance", html! { (balance) " " small { "credits" } }, html! {
                p { (parts::link_button("/credits/add", "Add credits", true)) }
            }),
        ]))
    };
    let page = Page::framed("Overview", Place::Overview, viewer, inside);
    Ok(visit.page(house, &page))
}

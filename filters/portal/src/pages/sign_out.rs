//! `/sign-out`

use tollgate_filter::Reply;
use tollgate_identity::{SessionValue, session};

use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// Ends the session. The browser gets a new value, so that nothing it kept is worth anything.
pub(crate) async fn sign_out(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    if let Some(session) = &visit.session {
        house.sandbox.end(house, session.digest, visit.now).await?;
    }
    session::end_session(&house.store, visit.browser()).await?;
    visit.renew(SessionValue::draw(house.draw()));
    Ok(visit.go(house, "/sign-in?out=1"))
}

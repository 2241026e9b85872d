//! What is to be made, and for whom.

use lock_api::StoreError;
use pg_kit::{Access, unavailable};

/// Where paydb's schema is, and who works in it.
#[derive(Clone, Debug)]
pub struct PaySchema {
    /// The database, as the schema's owner.
    pub access: Access,
    /// The schema; made when it is missing. Two schemas are two paydbs. 1 to 40 characters of `[a-z0-9_]`.
    pub schema: String,
    /// The role of the payment resource. Named as the schema.
    pub payment_role: String,
    /// The role of the rail proxy. Named as the schema.
    pub rail_role: String,
}

impl PaySchema {
    /// The schema `pay` with the roles `dlock_payment` and `dlock_rail`.
    #[must_use]
    pub fn at(access: Access) -> Self {
        Self {
            access,
            schema: "pay".to_owned(),
            payment_role: "dlock_payment".to_owned(),
            rail_role: "dlock_rail".to_owned(),
        }
    }

    /// Names stand in statements, so they have to be harmless; and one role for both fence points would be none.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        for (what, name) in [
            ("schema", &self.schema),
            ("payment role", &self.payment_role),
            ("rail role", &self.rail_role),
        ] {
            pg_kit::check_name(what, name)?;
        }
        if self.payment_role == self.rail_role {
            return Err(unavailable(format!(
                "the payment role and the rail role are both {}: each fence point needs a role of its own, which the \
                 other one's process does not have",
                self.payment_role
            )));
        }
        Ok(())
    }
}

//! The routes, one file per subject of C3.3.

mod audit;
mod lineage;
mod locks;
mod sessions;
mod watch;

use crate::bounds::Bounds;
use actix_web::web::{self, Data, ServiceConfig};
use gateway_kit::Drain;
use host_kit::Host;
use lock_core::LockService;

pub(crate) use audit::*;
pub(crate) use lineage::*;
pub(crate) use locks::*;
pub(crate) use sessions::*;
pub(crate) use watch::*;

/// What every route needs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LockServer {
    /// The running core.
    pub service: LockService,
    /// What a request may ask for.
    pub bounds: Bounds,
    /// Clock and ids of the process.
    pub host: Host,
    /// The end of the process, which ends watches.
    pub drain: Drain,
}

/// Adds the routes L1–L11.
pub fn configure(config: &mut ServiceConfig, server: LockServer) {
    config
        .app_data(Data::new(server))
        .service(
            web::resource("/v1/sessions")
                .route(web::post().to(open_session))
                .route(web::get().to(list_sessions)),
        )
        .route("/v1/sessions/{id}/heartbeat", web::post().to(heartbeat))
        .service(
            web::resource("/v1/sessions/{id}")
                .route(web::get().to(get_session))
                .route(web::delete().to(close_session)),
        )
        .route("/v1/locks", web::get().to(list_locks))
        .route("/v1/locks/{key}/acquire", web::post().to(acquire))
        .route("/v1/locks/{key}/renew", web::post().to(renew))
        .route("/v1/locks/{key}/revoke", web::post().to(revoke))
        .route("/v1/locks/{key}/yield", web::post().to(ask_to_yield))
        .route("/v1/locks/{key}/check", web::post().to(check))
        .route("/v1/locks/{key}/history", web::get().to(lock_history))
        .route("/v1/locks/{key}/watch", web::get().to(watch_lock))
        .service(
            web::resource("/v1/locks/{key}")
                .route(web::get().to(get_lock))
                .route(web::delete().to(release)),
        )
        .route("/v1/audit", web::get().to(audit))
        .route("/v1/audit/seals", web::get().to(audit_seals))
        .route("/v1/lineage", web::get().to(get_lineage))
        .route("/v1/lineage/floor", web::post().to(set_floor));
}

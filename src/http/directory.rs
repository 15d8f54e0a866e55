//! The directory's routes.

use utoipa_axum::router::OpenApiRouter;

use super::App;

/// The directory's routes.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
}

//! The documentation's pages, from files that the binary carries.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use utoipa_swagger_ui::{Config, SwaggerUi, Url};

use super::{App, openapi};

/// `/docs` and `/openapi.json`.
pub fn routes() -> Router<App> {
    // Tokens are not to stay in the browser when the page is gone.
    let config =
        Config::new([Url::new("mandate", "/openapi.json")]).try_it_out_enabled(true).persist_authorization(false);
    let pages: Router<App> = SwaggerUi::new("/docs").config(config).into();
    pages.route("/openapi.json", get(document))
}

async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::text()).into_response()
}

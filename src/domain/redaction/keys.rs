//! The names under which secrets are kept.

use std::collections::HashSet;
use std::sync::LazyLock;

/// The exact names whose values are hidden whatever they are, apart by white space.
///
/// Names are compared without case, `-`, `_` and space, so that `api_key` stands for `apiKey`, `API-KEY` and
/// `Api Key` too, and never in part: `tokens_sent`, `max_tokens`, `token_type`, `next_page_token`, `session_id`,
/// `session_key`, `idempotency_key` and `public_key` are no secrets.
pub const SECRET_NAMES: &[&str] = &[
    // Passwords.
    "password passwords passwd pwd passphrase passcode user_password admin_password root_password login_password",
    "old_password new_password current_password confirm_password password_confirmation temporary_password",
    "db_password db_pass database_password postgres_password pg_password mysql_password mysql_root_password",
    "mysql_pwd mariadb_password mongo_password mongo_initdb_root_password redis_password rabbitmq_password",
    "rabbitmq_default_pass clickhouse_password elastic_password smtp_password email_password ftp_password",
    "proxy_password ldap_password bind_password docker_password registry_password twine_password",
    "keystore_password truststore_password key_password store_password key_passphrase ssh_passphrase",
    "gpg_passphrase basic_auth_password http_password sudo_password ansible_password ansible_become_password",
    "vault_password sshpass",
    // Secrets.
    "secret secrets secret_key secret_keys secret_value secret_text secret_token secret_access_key",
    "secret_key_base client_secret consumer_secret app_secret application_secret api_secret api_secret_key",
    "shared_secret signing_secret slack_signing_secret webhook_secret github_webhook_secret stripe_webhook_secret",
    "stripe_secret_key cookie_secret session_secret jwt_secret jwt_secret_key auth_secret nextauth_secret",
    "better_auth_secret oauth_client_secret google_client_secret github_client_secret azure_client_secret",
    "arm_client_secret django_secret_key flask_secret_key hmac_secret totp_secret mfa_secret otp_secret",
    "turnstile_secret_key recaptcha_secret_key",
    // Tokens.
    "token access_token access_tokens refresh_token refresh_tokens id_token auth_token authentication_token",
    "authorization_token bearer_token session_token security_token api_token api_tokens app_token bot_token",
    "user_token oauth_token oauth_token_secret oauth_access_token access_token_secret personal_access_token",
    "private_token job_token ci_job_token deploy_token registry_token reset_token password_reset_token",
    "verification_token invite_token magic_link_token impersonation_token service_account_token csrf_token",
    "xsrf_token csrfmiddlewaretoken jwt_token github_token gh_token gh_enterprise_token github_pat gitlab_token",
    "gitlab_private_token bitbucket_token npm_token node_auth_token pypi_token cargo_registry_token hf_token",
    "hugging_face_hub_token huggingface_token replicate_api_token slack_token slack_bot_token slack_app_token",
    "slack_user_token discord_token discord_bot_token telegram_bot_token telegram_token sentry_auth_token",
    "sonar_token codecov_token linear_token notion_token jira_token jira_api_token atlassian_token vault_token",
    "consul_token consul_http_token nomad_token terraform_token tfe_token digitalocean_token",
    "digitalocean_access_token cloudflare_api_token cf_api_token vercel_token netlify_auth_token heroku_api_token",
    "railway_token fly_api_token supabase_access_token snyk_token circle_token circleci_token",
    "buildkite_agent_token databricks_token twilio_auth_token aws_session_token aws_security_token x_auth_token",
    "x_access_token x_api_token x_csrf_token x_xsrf_token x_vault_token x_gitlab_token x_github_token",
    "x_amz_security_token x_figma_token x_shopify_access_token",
    // Keys.
    "api_key api_keys apikey x_api_key x_goog_api_key x_functions_key app_key application_key auth_key access_key",
    "account_key storage_key storage_account_key azure_storage_key shared_access_key shared_access_signature",
    "subscription_key ocp_apim_subscription_key master_key rails_master_key encryption_key decryption_key",
    "signing_key hmac_key symmetric_key private_key private_keys private_key_pem rsa_private_key ssh_private_key",
    "ssh_key deploy_key tls_private_key ssl_private_key gpg_private_key service_account_key service_role_key",
    "supabase_key supabase_service_role_key google_api_key gemini_api_key openai_api_key openai_key",
    "azure_openai_api_key azure_openai_key azure_api_key anthropic_api_key anthropic_auth_token",
    "claude_code_oauth_token openrouter_api_key mistral_api_key cohere_api_key groq_api_key deepseek_api_key",
    "xai_api_key together_api_key fireworks_api_key perplexity_api_key voyage_api_key pinecone_api_key",
    "langchain_api_key langsmith_api_key langfuse_secret_key wandb_api_key tavily_api_key serpapi_api_key",
    "brave_api_key exa_api_key firecrawl_api_key e2b_api_key dd_api_key dd_app_key datadog_api_key",
    "datadog_app_key new_relic_license_key newrelic_api_key grafana_api_key honeycomb_api_key sendgrid_api_key",
    "mailgun_api_key postmark_api_key resend_api_key mailchimp_api_key stripe_api_key stripe_key twilio_api_key",
    "algolia_api_key algolia_admin_key linear_api_key notion_api_key heroku_api_key cloudflare_api_key",
    "shodan_api_key aws_secret_access_key aws_secret_key minio_secret_key minio_root_password s3_secret_key",
    // Headers and the rest.
    "authorization proxy_authorization x_authorization authorization_header x_forwarded_authorization cookie",
    "cookies cookie_header set_cookie session_cookie auth_cookie credential credentials aws_credentials",
    "google_credentials google_application_credentials_json git_credentials service_account_credentials",
    "connection_string connection_strings azure_storage_connection_string database_connection_string",
    "docker_auth_config docker_config_json recovery_code recovery_codes backup_codes seed_phrase mnemonic_phrase",
];

/// Names of the list that are common words as well: in running text, what follows one is a secret only when it
/// looks like one.
const COMMON_WORDS: &[&str] = &[
    "token",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "cookie",
    "cookies",
    "authorization",
    "passcode",
    "pwd",
];

/// No name of the list is longer, folded.
const FOLDED_MAX: usize = 40;

static FOLDED_NAMES: LazyLock<HashSet<Vec<u8>>> =
    LazyLock::new(|| names().filter_map(|name| folded(name, <[u8]>::to_vec)).collect());

/// Every name of the list.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SECRET_NAMES.iter().flat_map(|line| line.split_whitespace())
}

/// Whether `name`, folded, is on the list.
pub fn is_secret_name(name: &str) -> bool {
    folded(name, |folded| FOLDED_NAMES.contains(folded)).unwrap_or(false)
}

/// Whether `name`, folded, is one of `words`.
pub(super) fn is_one_of(name: &str, words: &[&str]) -> bool {
    folded(name, |folded| words.iter().any(|word| word.as_bytes() == folded)).unwrap_or(false)
}

/// Whether `name`, which is on the list, is a common word as well.
pub(super) fn is_common_word(name: &str) -> bool {
    is_one_of(name, COMMON_WORDS)
}

/// Hands `name` on without case and separators; `None` when that is too long to be on the list. Every key of every
/// payload comes through here, so it allocates nothing.
fn folded<T>(name: &str, then: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let mut buffer = [0; FOLDED_MAX];
    let mut length = 0;
    for byte in name.bytes().filter(|b| !matches!(b, b'-' | b'_' | b' ')) {
        *buffer.get_mut(length)? = byte.to_ascii_lowercase();
        length += 1;
    }
    buffer.get(..length).map(then)
}

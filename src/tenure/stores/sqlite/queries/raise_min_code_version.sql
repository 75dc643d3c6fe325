-- A migration may shut out older code, and never lets it in again.
update tenure_meta
set value = max(value, :min_code_version)
where key = 'min_code_version'

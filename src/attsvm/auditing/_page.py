def write_audit_page(path, facts):
    path.write_text("page")

"""The pages. Each is a query, a view model and a template; its live parts are the same templates alone."""

"""What frameworks do with layouts: `contract` says what is asked, each other module is a framework's."""

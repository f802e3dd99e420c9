// The chosen theme, before anything is drawn. Without a choice the system's is taken.
document.documentElement.dataset.theme = localStorage.getItem("softdex-theme") ?? "";
